# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs and how they are joined: the plain facts that providers find and everything else reads.

>>> pair = Machine(
...     node="n1", model="a6000", gpus=(Gpu(0, 0, "GPU-a"), Gpu(1, 1, "GPU-b")),
...     links=(Link(0, 1, 4, 56.248),), paths=(("SELF", "NODE"), ("NODE", "SELF")))
>>> pair.gbps[0][1], pair.near[0][1]
(56.248, 2)
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from topology.errors import MachineError

Via: TypeAlias = Literal["direct", "switch"]
PathWord: TypeAlias = Literal["SELF", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]

#: How near two GPUs are over PCIe; greater is nearer. A path that is not known counts as the farthest.
NEAR: dict[str, int] = {"SELF": 6, "PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1, "?": 0}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `position` is K of its GRES type gK, `uuid` is its identity everywhere else."""

    position: int
    minor: int
    uuid: str
    name: str = ""
    bus_id: str = ""
    numa: int = -1
    """NUMA node, -1 where the machine does not say."""
    cpus: str = ""
    """CPUs near it as Linux numbers them, such as `0-7,16-23`; empty where the machine does not say."""
    memory_mib: int = 0
    mig: bool = False
    c2c_gbps: float = 0.0
    """GB/s of its chip-to-chip link to its CPU, one direction; 0 where it has none."""


@dataclass(frozen=True, slots=True)
class Link:
    """The NVLinks that join GPUs `a` < `b` (positions), all of them together."""

    a: int
    b: int
    count: int
    gbps: float
    """GB/s in one direction."""
    via: Via = "direct"


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card that GPUs can talk through: one physical function, its virtual ones merged into it."""

    name: str
    """As the kernel calls it: `mlx5_0`, `ens1f0`."""
    bus_id: str = ""
    numa: int = -1
    kind: str = ""
    """`infiniband`, `ethernet`, or empty if not known."""
    gbps: float = 0.0
    """GB/s in one direction, all ports together; 0 if not known."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """Time and method of a machine's discovery."""

    at: str
    by: str
    driver: str = ""


@dataclass(frozen=True, slots=True)
class MachineShape:
    """The data that decide which GPUs belong together; machines of equal shape share all results computed from it."""

    gbps: tuple[tuple[float, ...], ...]
    """NVLink bandwidth of each pair in GB/s, one direction; 0 where none. Symmetric."""
    near: tuple[tuple[int, ...], ...]
    """PCIe relation of each pair as in `NEAR`. Symmetric."""

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.gbps)


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as its topology file describes it (docs/develop/formats.md, section 3)."""

    node: str
    model: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...] = ()
    paths: tuple[tuple[PathWord, ...], ...] = ()
    problems: tuple[str, ...] = ()
    discovered: Discovered | None = None
    nics: tuple[Nic, ...] = ()
    nic_paths: tuple[tuple[PathWord, ...], ...] = ()
    """PCIe relation of each GPU (row) to each NIC (column); empty if not known."""
    domain: str = ""
    """NVLink domain that this node shares with others, `CLUSTER-UUID.CLIQUE`; empty where NVLink ends at the node."""
    switches: int = 0
    """NVSwitches that the GPUs' links lead to; 0 where there are none or the driver hides them."""
    shape: MachineShape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(gpu.position != i for i, gpu in enumerate(self.gpus)):
            raise MachineError(f"node {self.node}: GPU positions are not 0, 1, 2, ... in this order")
        first: dict[str, int] = {}
        for gpu in self.gpus:
            if first.setdefault(gpu.uuid, gpu.position) != gpu.position:
                raise MachineError(
                    f"node {self.node}: GPUs {first[gpu.uuid]} and {gpu.position} have the same UUID {gpu.uuid};"
                    " each is expected to have its own"
                )
        _check_nics(self)
        pairs = tuple((link.a, link.b, link.gbps) for link in self.links)
        try:
            shape = _shape(len(self.gpus), pairs, self.paths)
        except MachineError as error:
            raise MachineError(f"node {self.node}: {error}") from None
        object.__setattr__(self, "shape", shape)

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)

    @property
    def gbps(self) -> tuple[tuple[float, ...], ...]:
        """NVLink bandwidth of each pair in GB/s, one direction; 0 where none."""
        return self.shape.gbps

    @property
    def near(self) -> tuple[tuple[int, ...], ...]:
        """PCIe relation of each pair as in `NEAR`."""
        return self.shape.near


def _check_nics(machine: Machine) -> None:
    if len({nic.name for nic in machine.nics}) != len(machine.nics):
        raise MachineError(f"node {machine.node}: two NICs have the same name")
    if not machine.nic_paths:
        return
    rows, columns = len(machine.gpus), len(machine.nics)
    if len(machine.nic_paths) != rows or any(len(row) != columns for row in machine.nic_paths):
        raise MachineError(
            f"node {machine.node}: nic_paths is not {rows} rows, one a GPU, of {columns} columns, one a NIC"
        )
    for gpu, row in enumerate(machine.nic_paths):
        for nic, word in zip(machine.nics, row, strict=True):
            if word not in NEAR or word == "SELF":
                raise MachineError(f'node {machine.node}: the path of GPU {gpu} and {nic.name} is "{word}"')


# A cluster has thousands of nodes and a handful of shapes: equal ones become the same object.
@functools.lru_cache(maxsize=1024)
def _shape(
    size: int, links: tuple[tuple[int, int, float], ...], paths: tuple[tuple[PathWord, ...], ...]
) -> MachineShape:
    gbps = [[0.0] * size for _ in range(size)]
    for a, b, speed in links:
        if not 0 <= a < b < size:
            raise MachineError(f"a link joins GPUs {a} and {b}; of {size} GPUs a < b are expected")
        if gbps[a][b]:
            raise MachineError(f"GPUs {a} and {b} are joined by two entries of links; one a pair is expected")
        if not 0 < speed < math.inf:
            raise MachineError(f"the link of GPUs {a} and {b} has {speed} GB/s; leave a dead link out")
        gbps[a][b] = gbps[b][a] = speed
    return MachineShape(gbps=tuple(map(tuple, gbps)), near=_near(size, paths))


def _near(size: int, paths: tuple[tuple[PathWord, ...], ...]) -> tuple[tuple[int, ...], ...]:
    if not paths:
        return tuple(tuple(NEAR["SELF"] if a == b else NEAR["?"] for b in range(size)) for a in range(size))
    if len(paths) != size or any(len(row) != size for row in paths):
        raise MachineError(f"paths is not a square of {size} rows and columns")
    for a, row in enumerate(paths):
        for b, word in enumerate(row):
            if word not in NEAR:
                raise MachineError(f'the path of GPUs {a} and {b} is "{word}"; it is one of {", ".join(NEAR)}')
            if (word == "SELF") != (a == b):
                raise MachineError(f'the path of GPUs {a} and {b} is "{word}"; SELF is where a GPU meets itself')
            if word != paths[b][a]:
                raise MachineError(
                    f'the path of GPUs {a} and {b} is "{word}", but "{paths[b][a]}" the other way;'
                    " both directions are expected to be the same"
                )
    return tuple(tuple(NEAR[word] for word in row) for row in paths)
