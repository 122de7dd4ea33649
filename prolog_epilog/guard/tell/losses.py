"""Tells berthd when owners' losses were best (docs/formats.md): early stopping would have saved the time after that.

A process that ends takes its word along, so what was heard of each job is kept until berthd was told.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prolog_epilog.guard.measure.heartbeat import Rank
from prolog_epilog.guard.tell.notice import Payload
from prolog_epilog.injob.word import WordBeat

_TELL_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class LossNotice:
    """The notice on one job on this node."""

    node: str
    job: int
    best: int
    """The time at which its loss was best, seconds since 1970."""
    told: int
    """The number of losses that its programs have told here."""

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return f"berth/1 loss node={self.node} job={self.job} best={self.best} told={self.told}"


@dataclass(slots=True)
class _Heard:
    at: float
    """The time at which it was told last; at first, when it was heard first."""
    best: float = 0.0
    told: int = 0
    news: bool = False


class ToldLosses:
    """The losses of all owners of this node."""

    def __init__(self, tell: Callable[[Payload], None], wall: Callable[[], float] = time.time) -> None:
        self._tell, self._wall = tell, wall
        self._heard: dict[int, _Heard] = {}

    def turn(self, now: float, node: str, words: Mapping[int, Mapping[Rank, WordBeat]]) -> None:
        """Reads losses ten times a second, since the last may come just before the end. `words`: each owner's beats."""
        for job, beats in words.items():
            told = [beat for beat in beats.values() if beat.losses and beat.best_at_ns]
            if told:
                self._hear(self._heard.setdefault(job, _Heard(now)), told)
        for job, heard in list(self._heard.items()):
            over = job not in words
            if heard.news and node and (over or now - heard.at >= _TELL_EVERY_S):
                best = round(self._wall() - (now - heard.best))
                self._tell(LossNotice(node, job, best, heard.told))
                heard.at, heard.news = now, False
            if over:
                del self._heard[job]

    @staticmethod
    def _hear(heard: _Heard, told: list[WordBeat]) -> None:
        # With several processes the latest best counts: less time then comes after it.
        best = max(beat.best_at_ns for beat in told) / 1e9
        if best > heard.best:
            heard.best, heard.news = best, True
        heard.told = max(heard.told, sum(beat.losses for beat in told))
