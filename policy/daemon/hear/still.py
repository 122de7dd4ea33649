# SPDX-License-Identifier: Apache-2.0
"""Jobs that hang: all of their nodes report that nothing has moved for longer than the job's rhythm allows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from policy.formats.slurm_facts import JobFacts

_BELIEVED_FOR = 150.0
"""Seconds for which a node's notice counts; the node sends it again each minute while nothing moves."""

_RANK = rb"(?:[0-9]|[1-5][0-9]|6[0-3]):(?:-|[0-9]{1,15}):[01]"
_PAYLOAD = re.compile(
    rb"berth/1 still node=([A-Za-z0-9_.-]{1,255}) job=([1-9][0-9]{0,9}) for=([0-9]{1,9}) allowed=([0-9]{1,9})"
    rb" ranks=(" + _RANK + rb"(?:," + _RANK + rb"){0,63})"
)


@dataclass(frozen=True, slots=True)
class StillWord:
    """One notice of a node (docs/develop/formats.md)."""

    node: str
    job: int
    still: int
    """Seconds since the last sign of life."""
    allowed: int
    ranks: tuple[tuple[int, int, bool], ...]
    """By rank: GPU position, steps (-1: not known), and True if the GPU runs a kernel, such as a waiting collective."""


class Hang(NamedTuple):
    """A job that hangs, as it is shown."""

    since: int
    """The last sign of life, in seconds since 1970."""
    allowed: int
    behind: str
    """Text that names the ranks that are behind the others; empty if none are."""


def read_word(payload: bytes) -> StillWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        return None
    ranks = [one.split(b":") for one in match[5].split(b",")]
    read = tuple((int(gpu), -1 if steps == b"-" else int(steps), busy == b"1") for gpu, steps, busy in ranks)
    return StillWord(match[1].decode(), int(match[2]), int(match[3]), int(match[4]), read)


@dataclass(slots=True)
class StillJobs:
    """The nodes' notices of jobs in which nothing moves."""

    _heard: dict[tuple[int, str], tuple[float, StillWord]] = field(default_factory=dict)

    def hear(self, word: StillWord, at: float) -> None:
        """Takes a node's notice of a job in place of its last one."""
        self._heard[word.job, word.node] = at, word

    def hangs(self, jobs: Iterable[JobFacts], at: float) -> dict[int, Hang]:
        """Returns by number the jobs that all their nodes report; no packed jobs, and no guests, which may pause."""
        self._heard = {key: one for key, one in self._heard.items() if at - one[0] < _BELIEVED_FOR}
        told_of = {job for job, _ in self._heard}
        found = {}
        for job in jobs if told_of else ():
            if job.id not in told_of or job.state != "RUNNING" or job.rides or job.share:
                continue
            said = [one for node in job.nodes if (one := self._heard.get((job.id, node)))]
            # A notice from before the start is about an earlier run.
            words = [(told, word) for told, word in said if told - word.allowed >= (job.start or 0)]
            if len(words) == len(job.nodes):
                since = max(told - word.still for told, word in words)
                found[job.id] = Hang(int(since), max(word.allowed for _, word in words), _behind(words))
        return found


def _behind(words: list[tuple[float, StillWord]]) -> str:
    """Names the ranks with the fewest steps; if all are equal, those whose GPUs run nothing while the others wait."""
    ranks = [(steps, busy, f"{word.node}:{gpu}") for _, word in words for gpu, steps, busy in word.ranks]
    if len(ranks) < 2 or min(ranks)[0] < 0:
        return ""
    fewest = [one for one in ranks if one[0] == min(ranks)[0]]
    slow = fewest if len(fewest) < len(ranks) else [one for one in fewest if not one[1]]
    if not 0 < len(slow) < len(ranks) / 2:
        return ""
    what = "ended fewer steps than the others" if len(fewest) < len(ranks) else "runs no kernel while the others wait"
    return f"{', '.join(name for _, _, name in slow[:4])}{' and more' if len(slow) > 4 else ''} {what}"
