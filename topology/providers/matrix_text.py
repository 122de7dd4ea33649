# SPDX-License-Identifier: Apache-2.0
"""A machine from the text of `nvidia-smi topo -m`: for a node that cannot be asked itself.

The text has no UUIDs, device minor numbers or link speeds; what is
guessed stands in the machine's problems.
"""

from itertools import combinations
from typing import cast

from topology.errors import MachineError, TopologyFileError
from topology.model import NEAR, Discovered, Gpu, Link, Machine, Nic, PathWord, Via
from topology.providers import speeds
from topology.providers.cpus import format_cpus, parse_cpus
from topology.providers.matrix_grid import Grid, read

#: `discovered.by` of such a machine.
SOURCE = "nvidia-smi topo -m"


def parse(text: str, node: str, model: str | None = None, source: str = "the text") -> Machine:
    """Make a machine of the text; a TopologyFileError names the source, the line and what was expected.

    The GPUs' UUIDs are place-holders, `GPU-NODE-0` and so on. `model` is the short name (`a100`), which also gives
    the links' speed. GPUs stand in the text's order, which is NVML's, and minor numbers follow it.
    """
    grid = read(text, source)
    problems = [f"UUIDs and device minor numbers are place-holders: {SOURCE} does not tell them"]
    if grid.cut:
        problems.append(f"{grid.cut} is cut in the text and left out: give {SOURCE} a wider terminal, or a file")
    gpus = tuple(
        Gpu(
            position=i,
            minor=i,
            uuid=f"GPU-{node}-{i}",
            numa=_numa(grid, name),
            cpus=format_cpus(parse_cpus(grid.cpus.get(name, ""))),
        )
        for i, name in enumerate(grid.gpus)
    )
    try:
        return Machine(
            node=node,
            model=model or "gpu",
            gpus=gpus,
            links=_links(grid, model, problems),
            paths=_paths(grid),
            problems=tuple(problems),
            discovered=Discovered(at="", by=SOURCE),
            nics=tuple(Nic(grid.legend.get(name, name)) for name in grid.nics),
            nic_paths=tuple(_row(grid, name)[len(gpus) :] for name in grid.gpus) if grid.nics else (),
        )
    except MachineError as error:
        raise TopologyFileError(f"{source}: {error}") from error


def _numa(grid: Grid, name: str) -> int:
    # Grace lists its own node and, behind it, nodes that its GPUs' memory may become.
    return min(parse_cpus(grid.numa[name])) if name in grid.numa else -1


def _links(grid: Grid, model: str | None, problems: list[str]) -> tuple[Link, ...]:
    counts = {
        (a, b): int(word.removeprefix("NV"))
        for a, b in combinations(range(len(grid.gpus)), 2)
        if (word := grid.words[grid.gpus[a]][b]).startswith("NV")
    }
    if not counts:
        return ()
    has = speeds.most_links(model or "")
    sums = [sum(count for pair, count in counts.items() if gpu in pair) for gpu in range(len(grid.gpus))]
    # A GPU cannot have more links than it has: then each row shows the same ones, which lead to switches.
    via: Via = "switch" if max(sums) > has else "direct"
    mbps = speeds.of_model(model) if model else None
    if mbps is None:
        links = max(counts.values()) if via == "switch" else max(sums)
        mbps = speeds.guess_mbps(links)
        problems.append(
            f"the speed of an NVLink, {mbps / 1000} GB/s, is guessed from {links} links a GPU: "
            + (f"the model {model} is not known" if model else "name the GPU model")
        )
    return tuple(Link(a, b, count, round(count * mbps / 1000, 3), via) for (a, b), count in counts.items())


def _row(grid: Grid, name: str) -> tuple[PathWord, ...]:
    """Returns PCIe words of one GPU to every device; `?` where NVLink hides them."""
    words = ("SELF" if word == "X" else "?" if word.startswith("NV") else word for word in grid.words[name])
    return cast("tuple[PathWord, ...]", tuple(words))


def _paths(grid: Grid) -> tuple[tuple[PathWord, ...], ...]:
    rows = [_row(grid, name) for name in grid.gpus]
    return tuple(
        tuple(_behind_nvlink(grid, rows, a, b) if word == "?" else word for b, word in enumerate(row[: len(rows)]))
        for a, row in enumerate(rows)
    )


def _behind_nvlink(grid: Grid, rows: list[tuple[PathWord, ...]], a: int, b: int) -> PathWord:
    """Returns the PCIe relation of two GPUs of which the text shows only NVLinks.

    PCIe is a tree, so a third device tells: where the two are not equally near to it, they are as far from each
    other as the farther of them is from it; else they are at least as near as it is. Then NUMA nodes tell.
    """
    at_least = NEAR["?"]
    for one, other in zip(rows[a], rows[b], strict=True):
        if {one, other} & {"?", "SELF"}:
            continue
        if one != other:
            return min(one, other, key=NEAR.__getitem__)
        at_least = max(at_least, NEAR[one])
    numas = _numa(grid, grid.gpus[a]), _numa(grid, grid.gpus[b])
    if -1 not in numas:
        at_least = max(at_least, NEAR["NODE"] if numas[0] == numas[1] else NEAR["SYS"])
    return next(cast("PathWord", word) for word, near in NEAR.items() if near == at_least)
