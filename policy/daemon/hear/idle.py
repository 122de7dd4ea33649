# SPDX-License-Identifier: Apache-2.0
"""GPUs that have no process or run no kernel, as their nodes report them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from policy.formats.slurm_facts import JobFacts
from policy.plan.ledger.tracker import gpus_held
from topology.sets.wiring import positions

BELIEVED_FOR = 600.0
"""Seconds for which a node's notice counts; a node with idle GPUs sends one every five minutes."""
FREE_START = 600.0
"""Seconds from a job's start that do not count: staging and the first compilation."""

_GPU = rb"(?:[0-9]|[1-5][0-9]|6[0-3]):[0-9]{1,9}:[0-9]{1,9}:[0-9]{1,9}"
_PAYLOAD = re.compile(rb"berth/1 idle node=([A-Za-z0-9_.-]{1,255}) gpus=(-|" + _GPU + rb"(?:," + _GPU + rb"){0,63})")


class HeldGpu(NamedTuple):
    """An idle GPU that one job has to itself; times are seconds since 1970."""

    no_kernel: int
    """The time since which it runs no kernel."""
    no_process: int | None
    """The time since which it has no process; None if it has one."""
    memory_mib: int
    """Memory in use."""


@dataclass(frozen=True, slots=True)
class IdleWord:
    """One notice of a node (docs/develop/formats.md)."""

    node: str
    gpus: tuple[tuple[int, int, int, int], ...]
    """By GPU: its position, seconds without a process, seconds without a kernel, and MiB in use."""
    job: int = 0
    """Always 0: the notice is about no job."""


def read_word(payload: bytes) -> IdleWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        return None
    gpus = [] if match[2] == b"-" else [tuple(map(int, one.split(b":"))) for one in match[2].split(b",")]
    return IdleWord(match[1].decode(), tuple((place, used, worked, mib) for place, used, worked, mib in gpus))


@dataclass(slots=True)
class IdleGpus:
    """The idle GPUs of all nodes."""

    _heard: dict[str, tuple[float, IdleWord]] = field(default_factory=dict)

    def hear(self, word: IdleWord, at: float) -> None:
        """Takes a node's notice in place of its last one."""
        self._heard[word.node] = at, word

    def held(self, jobs: Iterable[JobFacts], at: float) -> dict[tuple[str, int], HeldGpu]:
        """Returns by node and position the idle GPUs that one job has to itself.

        GPUs with packed jobs or guests are left out: the node cannot tell whose kernels run.
        """
        self._heard = {node: one for node, one in self._heard.items() if at - one[0] < BELIEVED_FOR}
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
        return {
            (node, gpu): HeldGpu(int(max(told - worked, begun)), int(max(told - used, begun)) if used else None, mib)
            for gpu, used, worked, mib in word.gpus
            if mask >> gpu & 1 and max(told - worked, begun) < at
        }
