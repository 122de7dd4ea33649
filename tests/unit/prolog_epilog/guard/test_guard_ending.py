# SPDX-License-Identifier: Apache-2.0
"""The end of a guest: each step comes in its time, also where berthd and Slurm do not answer."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.guard.hold import ending
from prolog_epilog.guard.hold.ending import ASK_S, HURRY_S, Ending
from prolog_epilog.guard.hold.guest_hold import TERM_S
from tests.examples import examples

STEP = 0.1


class Guest:
    """A guest with one process, which SIGTERM ends or does not, and SIGKILL does."""

    def __init__(self, *, heeds: bool) -> None:
        self.heeds = heeds
        self.lives = True
        self.guest = SimpleNamespace(job=7)
        self.by_freezer = False
        self.signals: list[tuple[float, int]] = []
        self.now = 0.0

    def hold(self, now: float, duty: float, *, by_freezer: bool) -> None:
        assert duty == 0.0
        self.now, self.by_freezer = now, by_freezer

    def pids(self, *_: Any) -> Iterable[int]:
        return [70] if self.lives else []

    def send(self, _job: int, number: int, **_: Any) -> None:
        self.signals.append((self.now, number))
        self.lives = self.lives and not (number == signal.SIGKILL or self.heeds)


def play(put: pytest.MonkeyPatch, guest: Guest, answers_at: float | None, *, hurry: bool = False) -> float:
    """Return when the guest was over, of which berthd and Slurm answer at that time, or never."""
    asked = Event()
    put.setattr(ending, "freezer", SimpleNamespace(pids=guest.pids, send=guest.send))
    one = Ending(cast("Any", guest), Path("/nowhere"), lambda _: asked, 0.0)
    if hurry:
        one.hurry()
    for turn in range(1, 200):
        guest.now = turn * STEP
        if answers_at is not None and guest.now >= answers_at:
            asked.set()
        one.turn(guest.now)
        if one.over:
            return guest.now
    pytest.fail(f"the guest lives after {guest.now:.0f} s; it was sent {guest.signals}")


@settings(max_examples=examples(100))
@given(st.one_of(st.none(), st.floats(0.0, 30.0)), st.booleans())
def test_a_guest_is_gone_in_its_time_whoever_answers(answers_at: float | None, heeds: bool) -> None:
    with pytest.MonkeyPatch.context() as put:
        guest = Guest(heeds=heeds)
        took = play(put, guest, answers_at)

    bound = ASK_S + (0.0 if heeds else TERM_S)
    assert took <= bound + 3 * STEP
    (at, first), *rest = guest.signals
    assert first == signal.SIGTERM
    assert at <= ASK_S + STEP, "Slurm's silence lengthens nothing"
    assert [number for _, number in rest] == ([] if heeds else [signal.SIGKILL])


@pytest.mark.parametrize("answers_at", [0.1, None])
def test_a_guest_whose_owner_waits_for_memory_gets_both_signals_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, answers_at: float | None
) -> None:
    guest = Guest(heeds=False)

    took = play(monkeypatch, guest, answers_at, hurry=True)

    assert took <= (answers_at or HURRY_S) + 1.5 * STEP
    (at, first), (then, second) = guest.signals
    assert (first, second, then) == (signal.SIGTERM, signal.SIGKILL, at)


def test_a_guest_that_has_ended_already_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = Guest(heeds=True)
    guest.lives = False
    monkeypatch.setattr(ending, "freezer", SimpleNamespace(pids=guest.pids, send=guest.send))
    asked: list[bool] = []

    def ask(lives: bool) -> Event:
        asked.append(lives)
        return Event()

    assert Ending(cast("Any", guest), Path("/nowhere"), ask, 0.0).over
    assert (asked, guest.signals) == ([False], [])
