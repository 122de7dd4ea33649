# SPDX-License-Identifier: Apache-2.0
"""Tells berthd of each GPU of this node: use, memory, power, and since when it has no process or runs no kernel.

berthd knows which of them a job holds. Where jobs share a GPU, each is told of by itself: it idles while it has no
process there, or while the whole GPU runs no kernel. A GPU in MIG mode does not tell if it works, and is left out; an
instance is told of by its processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prolog_epilog import monitoring
from prolog_epilog.errors import NodeError
from prolog_epilog.node import cgroups
from prolog_epilog.node.devices import Driver, GpuProcess, NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state

TOLD_EVERY = 60.0
"""Seconds between two notices."""
_MOST_PARTS = 40
"""The most parts in a notice, those that have been idle for longest."""


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


class GpuPart(NamedTuple):
    """The part of a GPU that one job has: a share, a seat or a MIG instance."""

    name: str
    """The GPU's position; of a MIG instance `GPU.INSTANCE`, as monitoring names it."""
    uuid: str
    job: int


def parts_of(paths: Paths, known: Iterable[NodeGpu]) -> list[GpuPart]:
    """Returns the parts in the node's books; MIG instances stand in the lists for monitoring alone."""
    names = {gpu.uuid: str(gpu.position) for gpu in known}
    shares = [(uuid, one) for one in state.everything(paths) for uuid in one.uuids if uuid in names]
    found = [GpuPart(names[uuid], uuid, tenant.job) for uuid, one in shares for tenant in one.tenants]
    return found + [GpuPart(gpu.name, gpu.uuid, job) for job, gpu in monitoring.instances(paths)]


@dataclass(slots=True)
class GpuLooks:
    """Remembers when each GPU last had a process and last ran a kernel; at its beginning no GPU counts as idle."""

    gpus: dict[int, _Gpu] = field(default_factory=dict)
    parts: dict[GpuPart, _Gpu] = field(default_factory=dict)
    seen: tuple[SeenGpu, ...] = ()
    """The last look."""
    _told_at: float = float("-inf")

    def look(self, driver: Driver, known: Iterable[NodeGpu], now: float, parts: Sequence[GpuPart] = ()) -> None:
        """Looks at each GPU and part once; one that does not answer is forgotten."""
        self.seen, running = (), dict[str, tuple[GpuProcess, ...]]()
        for gpu in known:
            one = self.gpus.setdefault(gpu.position, _Gpu(now, now))
            try:
                worked = driver.worked(gpu.uuid, one.stamp)
                running[gpu.uuid] = driver.processes(gpu.uuid)
                pids = tuple(process.pid for process in running[gpu.uuid])
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
        before, self.parts = self.parts, {}
        for part in parts:
            try:
                there = running[part.uuid] if part.uuid in running else driver.processes(part.uuid)
            except NodeError:
                continue
            mine = [process for process in there if cgroups.job_of(process.pid) == part.job]
            whole = self.gpus.get(int(part.name)) if part.name.isdigit() else None
            one = self.parts[part] = before.get(part) or _Gpu(now, now)
            one.used = now if mine else one.used
            one.worked = now if mine and (whole is None or whole.worked == now) else one.worked
            one.memory_mib = sum(process.memory_mib or 0 for process in mine)

    def due(self, now: float) -> str | None:
        """Returns what is to be told now, in the words of the notice; None for nothing."""
        if not (self.gpus or self.parts) or now - self._told_at < TOLD_EVERY:
            return None
        self._told_at = now
        gpus = [
            f"{place}:{now - gpu.used:.0f}:{now - gpu.worked:.0f}:{gpu.percent}:{gpu.memory_mib}"
            f":{'-' if gpu.power_w is None else gpu.power_w}"
            for place, gpu in self.gpus.items()
        ]
        idle_first = sorted(self.parts.items(), key=lambda one: one[1].worked)[:_MOST_PARTS]
        parts = [
            f"{part.name}:{now - gpu.used:.0f}:{now - gpu.worked:.0f}:{gpu.memory_mib}:{part.job}"
            for part, gpu in idle_first
        ]
        return (",".join(gpus) or "-") + (f" parts={','.join(parts)}" if parts else "")


@dataclass(frozen=True, slots=True)
class GpuNotice:
    """The GPUs of a node (docs/develop/formats.md)."""

    node: str
    gpus: str

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return f"berth/1 gpus node={self.node} gpus={self.gpus}"
