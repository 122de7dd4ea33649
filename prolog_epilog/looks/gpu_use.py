# SPDX-License-Identifier: Apache-2.0
"""Tells berthd of each GPU of this node: use, memory, power, and since when it has no process or runs no kernel.

berthd knows which of them a job holds. A GPU in MIG mode does not tell if it works, and is left out.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from prolog_epilog.errors import NodeError
from prolog_epilog.node.devices import Driver, NodeGpu

TOLD_EVERY = 60.0
"""Seconds between two notices."""


@dataclass(slots=True)
class _Gpu:
    """One GPU between two looks."""

    used: float
    """Time at which it last had a process."""
    worked: float
    """Time at which it last ran a kernel."""
    stamp: int = 0
    """The driver's own time of the newest utilisation that was read."""
    percent: int = 0
    """Share of the time since the look before in which it ran a kernel."""
    memory_mib: int = 0
    power_w: int | None = None


class SeenGpu(NamedTuple):
    """One look at a GPU."""

    position: int
    uuid: str
    busy: bool
    """True if it ran a kernel since the look before, or does not tell."""
    pids: tuple[int, ...]


@dataclass(slots=True)
class GpuLooks:
    """Remembers when each GPU last had a process and last ran a kernel; at its beginning no GPU counts as idle."""

    gpus: dict[int, _Gpu] = field(default_factory=dict)
    seen: tuple[SeenGpu, ...] = ()
    """The last look."""
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
                one.stamp, one.percent = worked.stamp, worked.percent
                one.worked = now if worked.busy else one.worked
                one.used = now if worked.busy or pids else one.used
                one.memory_mib, one.power_w = driver.memory_used_mib(gpu.uuid), driver.power_w(gpu.uuid)
            except NodeError:
                del self.gpus[gpu.position]

    def due(self, now: float) -> str | None:
        """Returns what is to be told now, in the words of the notice; None for nothing."""
        if not self.gpus or now - self._told_at < TOLD_EVERY:
            return None
        self._told_at = now
        return ",".join(
            f"{place}:{now - gpu.used:.0f}:{now - gpu.worked:.0f}:{gpu.percent}:{gpu.memory_mib}"
            f":{'-' if gpu.power_w is None else gpu.power_w}"
            for place, gpu in self.gpus.items()
        )


@dataclass(frozen=True, slots=True)
class GpuNotice:
    """The GPUs of a node (docs/develop/formats.md)."""

    node: str
    gpus: str

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return f"berth/1 gpus node={self.node} gpus={self.gpus}"
