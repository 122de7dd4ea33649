"""The work rate of an owner that reports no steps: turns the launches that the library counts into steps.

The signal is TGS's, the law behind it the guard's own. It is rougher than a heartbeat. An owner whose launches vary by
themselves, as a service's with its requests, is sometimes taken for slowed, and its guest gets less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prolog_epilog.guard.measure.signals import work_beat
from prolog_epilog.injob.word import WordBeat

_WINDOW_S = 1.5
"""Launches are counted for so long before they are a beat; the guard looks ten times a second, so the end is vague."""
_QUIET_S = 0.25
"""A pause between launches after which the next step begins: a window ends there if it can."""
_LONGEST_S = 2.5
_REST_S = 5.0
"""A program that launches nothing for so long pauses by itself; that is no harm, and its window does not count."""
_STEPS = 8
"""The first window counts as this many steps: enough to learn from, and a beat is never less than one."""


@dataclass(slots=True)
class _Count:
    """The launches of one process."""

    pid: int
    began: float
    before: int
    """Launches when the window began."""
    launches: int
    grew: float
    """The time at which it was last seen to launch."""
    unit: int = 0
    """Launches that are taken for a step."""
    steps: int = 0
    step_ns: int = 0
    at_ns: int = 0

    def hear(self, now: float, launches: int) -> None:
        """Takes the number of launches so far."""
        if launches == self.launches:
            return
        quiet, ended = now - self.grew, launches - self.before
        # Launches after the pause belong to the next window.
        paused, ended_then = quiet > _QUIET_S, self.launches - self.before
        self.launches, self.grew = launches, now
        if quiet > _REST_S:
            self.began, self.before = now, launches
        elif paused and now - self.began >= _WINDOW_S:
            self._close(now, ended_then)
        elif now - self.began >= _LONGEST_S:
            self._close(now, ended)

    def _close(self, now: float, done: int) -> None:
        if done < (self.unit or _STEPS):
            return  # the window goes on: a program may launch only one graph every few seconds
        seconds = now - self.began
        self.began, self.before = now, self.before + done
        if not self.unit:
            self.unit = done // _STEPS
            return
        beat = work_beat(now, seconds, done, self.unit)
        if beat is not None:
            self.steps += beat.steps
            self.step_ns += round(beat.took * 1e9)
            self.at_ns = round(now * 1e9)


class WorkRate:
    """The work rate of one owner job on this node."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], _Count] = {}
        self.measure = 0
        """A number that changes whenever earlier times say nothing about later ones."""

    def heard(self, now: float, words: Mapping[tuple[str, int], WordBeat]) -> Mapping[tuple[str, int], WordBeat]:
        """Returns the beats to judge by: the processes' own steps, or steps of launches if none reports steps."""
        if any(beat.steps for beat in words.values()) or not any(beat.launches for beat in words.values()):
            if self._counts and any(beat.steps for beat in words.values()):
                self.measure += 1
            self._counts.clear()
            return {place: beat for place, beat in words.items() if beat.ready}
        self._counts = {place: count for place, count in self._counts.items() if place in words}
        return {place: self._stepping(now, place, beat) for place, beat in words.items() if beat.launches}

    def _stepping(self, now: float, place: tuple[str, int], beat: WordBeat) -> WordBeat:
        count = self._counts.get(place)
        if count is None or count.pid != beat.pid or beat.launches < count.launches:
            self.measure += 1
            count = self._counts[place] = _Count(beat.pid, now, beat.launches, beat.launches, now)
        count.hear(now, beat.launches)
        return replace(beat, steps=count.steps, step_ns=count.step_ns, at_ns=count.at_ns)
