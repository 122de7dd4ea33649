# SPDX-License-Identifier: Apache-2.0
"""GPUs as their nodes report them: their use, memory and power, and those that are held and idle."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from policy.formats.slurm_facts import JobFacts
from policy.plan.ledger.tracker import gpus_held
from topology.sets.wiring import positions

BELIEVED_FOR = 150.0
"""Seconds for which a node's notice counts; a node sends one each minute."""
IDLE_AFTER = 600.0
"""Seconds without a kernel from which on a GPU is idle."""
FREE_START = 600.0
"""Seconds from a job's start that do not count: staging and the first compilation."""

_GPU = rb"(?:[0-9]|[1-5][0-9]|6[0-3]):[0-9]{1,9}:[0-9]{1,9}:(?:[0-9]{1,2}|100):[0-9]{1,9}:(?:-|[0-9]{1,5})"
_PAYLOAD = re.compile(rb"berth/1 gpus node=([A-Za-z0-9_.-]{1,255}) gpus=(" + _GPU + rb"(?:," + _GPU + rb"){0,63})")


class HeldGpu(NamedTuple):
    """An idle GPU that one job has to itself; times are seconds since 1970."""

    no_kernel: int
    """The time since which it runs no kernel."""
    no_process: int | None
    """The time since which it has no process; None if it has one."""
    memory_mib: int
    """Memory in use."""


class ToldGpu(NamedTuple):
    """A GPU as its node tells of it."""

    position: int
    unused: int
    """Seconds without a process; 0 if it has one."""
    idle: int
    """Seconds without a kernel."""
    percent: int
    """Share of the last seconds in which it ran a kernel."""
    memory_mib: int
    power_w: int | None


class SeenGpus(NamedTuple):
    """What the nodes tell of their GPUs, for the state file."""

    idle: Mapping[tuple[str, int], HeldGpu]
    """By node and position, the idle GPUs that one job holds."""
    use: Mapping[str, tuple[ToldGpu, ...]]
    """By node, its GPUs."""


NONE_SEEN = SeenGpus({}, {})


@dataclass(frozen=True, slots=True)
class GpuWord:
    """One notice of a node (docs/develop/formats.md)."""

    node: str
    gpus: tuple[ToldGpu, ...]
    job: int = 0
    """Always 0: the notice is about no job."""


def read_word(payload: bytes) -> GpuWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        return None
    gpus = []
    for one in match[2].split(b","):
        *numbers, power = one.split(b":")
        place, unused, idle, percent, mib = map(int, numbers)
        gpus.append(ToldGpu(place, unused, idle, percent, mib, None if power == b"-" else int(power)))
    return GpuWord(match[1].decode(), tuple(gpus))


@dataclass(slots=True)
class HeardGpus:
    """The GPUs of all nodes."""

    _heard: dict[str, tuple[float, GpuWord]] = field(default_factory=dict)

    def hear(self, word: GpuWord, at: float) -> None:
        """Takes a node's notice in place of its last one."""
        self._heard[word.node] = at, word

    def seen(self, jobs: Iterable[JobFacts], at: float) -> SeenGpus:
        """Returns the GPUs of the nodes whose last notice still counts."""
        self._heard = {node: one for node, one in self._heard.items() if at - one[0] < BELIEVED_FOR}
        return SeenGpus(self._held(jobs, at), {node: word.gpus for node, (_, word) in self._heard.items()})

    def _held(self, jobs: Iterable[JobFacts], at: float) -> dict[tuple[str, int], HeldGpu]:
        """Returns by node and position the idle GPUs that one job has to itself.

        GPUs with packed jobs or guests are left out: the node cannot tell whose kernels run.
        """
        found: dict[tuple[str, int], HeldGpu] = {}
        ridden: set[tuple[str, int]] = set()
        for job in jobs if self._heard else ():
            for name in self._heard.keys() & set(job.nodes if job.state == "RUNNING" else ()):
                mask = (job.gpus or 0) if job.rides else gpus_held(job, name) or 0
                if job.rides:
                    ridden |= {(name, position) for position in positions(mask)}
                elif not job.share:
                    found |= self._of_job(name, mask, (job.start or 0) + FREE_START, at)
        return {place: gpu for place, gpu in found.items() if place not in ridden}

    def _of_job(self, node: str, mask: int, begun: float, at: float) -> dict[tuple[str, int], HeldGpu]:
        told, word = self._heard[node]
        found = {}
        for gpu in word.gpus:
            no_kernel, no_process = (int(max(told - seconds, begun)) for seconds in (gpu.idle, gpu.unused))
            if gpu.idle >= IDLE_AFTER and mask >> gpu.position & 1 and no_kernel < at:
                found[node, gpu.position] = HeldGpu(no_kernel, no_process if gpu.unused else None, gpu.memory_mib)
        return found
