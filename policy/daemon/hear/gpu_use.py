# SPDX-License-Identifier: Apache-2.0
"""GPUs as their nodes report them: their use, memory and power, and those that are held and idle."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from policy.formats.slurm_facts import JobFacts
from policy.plan.ledger.tracker import gpus_held

BELIEVED_FOR = 150.0
"""Seconds for which a node's notice counts; a node sends one each minute."""
IDLE_AFTER = 600.0
"""Seconds without a kernel from which on a GPU is idle."""
FREE_START = 600.0
"""Seconds from a job's start that do not count: staging and the first compilation."""

_GPU = rb"(?:[0-9]|[1-5][0-9]|6[0-3]):[0-9]{1,9}:[0-9]{1,9}:(?:[0-9]{1,2}|100):[0-9]{1,9}:(?:-|[0-9]{1,5})"
_PART = rb"(?:[0-9]|[1-5][0-9]|6[0-3])(?:\.[0-9]{1,3})?(?::[0-9]{1,9}){3}:[1-9][0-9]{0,9}"
_PAYLOAD = re.compile(
    rb"berth/1 gpus node=([A-Za-z0-9_.-]{1,255}) gpus=(-|" + _GPU + rb"(?:," + _GPU + rb"){0,63})"
    rb"(?: parts=(" + _PART + rb"(?:," + _PART + rb"){0,63}))?"
)


class HeldGpu(NamedTuple):
    """An idle GPU that one job has to itself, or its part of one; times are seconds since 1970."""

    no_kernel: int
    """The time since which it runs no kernel."""
    no_process: int | None
    """The time since which it has no process; None if it has one."""
    memory_mib: int
    """Memory in use."""


Idle = Mapping[tuple[str, str, int], HeldGpu]
"""By node, GPU and job; the GPU is its position as text, or `GPU.INSTANCE`."""


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


class ToldPart(NamedTuple):
    """The part of a GPU that one job has, a share, a seat or a MIG instance; the other fields are those of a GPU."""

    name: str
    unused: int
    idle: int
    memory_mib: int
    job: int


class SeenGpus(NamedTuple):
    """The GPUs as their nodes tell of them, for the state file."""

    idle: Idle
    """The idle GPUs and parts of GPUs that jobs hold."""
    use: Mapping[str, tuple[ToldGpu, ...]]
    """By node, its GPUs."""


NONE_SEEN = SeenGpus({}, {})


@dataclass(frozen=True, slots=True)
class GpuWord:
    """One notice of a node (docs/develop/formats.md)."""

    node: str
    gpus: tuple[ToldGpu, ...]
    parts: tuple[ToldPart, ...] = ()
    job: int = 0
    """Always 0: the notice is about no job."""


def read_word(payload: bytes) -> GpuWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        return None
    gpus = []
    for one in match[2].split(b",") if match[2] != b"-" else ():
        *numbers, power = one.split(b":")
        place, unused, idle, percent, mib = map(int, numbers)
        gpus.append(ToldGpu(place, unused, idle, percent, mib, None if power == b"-" else int(power)))
    words = [one.split(":") for one in match[3].decode().split(",")] if match[3] else []
    parts = tuple(ToldPart(name, *map(int, numbers)) for name, *numbers in words)
    return GpuWord(match[1].decode(), tuple(gpus), parts)


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

    def _held(self, jobs: Iterable[JobFacts], at: float) -> Idle:
        """Returns the idle GPUs that jobs hold; of a shared one its node tells the jobs' parts."""
        found = {}
        for job in jobs if self._heard else ():
            for node in self._heard.keys() & set(job.nodes if job.state == "RUNNING" else ()):
                told, word = self._heard[node]
                mask, begun = gpus_held(job, node) or 0, (job.start or 0) + FREE_START
                shared = {part.name for part in word.parts}
                whole = ((str(gpu.position), gpu) for gpu in word.gpus if mask >> gpu.position & 1)
                mine: list[tuple[str, ToldGpu | ToldPart]] = [(name, gpu) for name, gpu in whole if name not in shared]
                mine += [(part.name, part) for part in word.parts if part.job == job.id]
                for name, gpu in mine:
                    since, unused = (int(max(told - seconds, begun)) for seconds in (gpu.idle, gpu.unused))
                    if gpu.idle >= IDLE_AFTER and since < at:
                        held = HeldGpu(since, unused if gpu.unused else None, gpu.memory_mib)
                        found[node, name, job.id] = held
        return found
