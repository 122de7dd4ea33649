# SPDX-License-Identifier: Apache-2.0
"""Tells berthd which GPUs of this node have no process, or run no kernel, and since when.

berthd knows which of them a job holds. A GPU in MIG mode does not tell if it works, and is left out.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from prolog_epilog.errors import NodeError
from prolog_epilog.node.devices import Driver, NodeGpu

IDLE_AFTER = 600.0
"""Seconds without a kernel from which on a GPU is told."""
AGAIN_AFTER = 300.0
"""Seconds after which the same is told again, as berthd may have begun anew."""


@dataclass(slots=True)
class _Gpu:
    """One GPU between two looks."""

    used: float
    """Time at which it last had a process."""
    worked: float
    """Time at which it last ran a kernel."""
    stamp: int = 0
    """The driver's own time of the newest utilisation that was read."""
    memory_mib: int = 0


class SeenGpu(NamedTuple):
    """One look at a GPU."""

    position: int
    uuid: str
    busy: bool
    """True if it ran a kernel since the look before, or does not tell."""
    pids: tuple[int, ...]


@dataclass(slots=True)
class IdleLooks:
    """Remembers when each GPU last had a process and last ran a kernel; at its beginning no GPU counts as idle."""

    gpus: dict[int, _Gpu] = field(default_factory=dict)
    seen: tuple[SeenGpu, ...] = ()
    """The last look."""
    _told: frozenset[tuple[int, bool]] = frozenset()
    _told_at: float = float("-inf")

    def look(self, driver: Driver, known: tuple[NodeGpu, ...], now: float) -> None:
        """Looks at each GPU once; one that does not answer is forgotten."""
        self.seen = ()
        for gpu in known:
            one = self.gpus.setdefault(gpu.position, _Gpu(now, now))
            try:
                worked = driver.worked(gpu.uuid, one.stamp)
                pids = tuple(process.pid for process in driver.processes(gpu.uuid))
                self.seen += (SeenGpu(gpu.position, gpu.uuid, worked is None or worked.busy, pids),)
                if worked is None:
                    del self.gpus[gpu.position]
                    continue
                one.stamp = worked.stamp
                one.worked = now if worked.busy else one.worked
                one.used = now if worked.busy or pids else one.used
                one.memory_mib = driver.memory_used_mib(gpu.uuid)
            except NodeError:
                del self.gpus[gpu.position]

    def due(self, now: float) -> str | None:
        """Returns what is to be told now, in the words of the notice; None for nothing."""
        idle = {place: gpu for place, gpu in self.gpus.items() if now - gpu.worked >= IDLE_AFTER}
        kinds = frozenset((place, now - gpu.used >= IDLE_AFTER) for place, gpu in idle.items())
        if kinds == self._told and (not kinds or now - self._told_at < AGAIN_AFTER):
            return None
        self._told, self._told_at = kinds, now
        words = [f"{place}:{now - gpu.used:.0f}:{now - gpu.worked:.0f}:{gpu.memory_mib}" for place, gpu in idle.items()]
        return ",".join(words) or "-"


@dataclass(frozen=True, slots=True)
class IdleNotice:
    """The idle GPUs of a node (docs/develop/formats.md)."""

    node: str
    gpus: str

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return f"berth/1 idle node={self.node} gpus={self.gpus}"
