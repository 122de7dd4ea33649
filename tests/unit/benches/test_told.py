# SPDX-License-Identifier: Apache-2.0
"""Failures say what was wanted."""

from __future__ import annotations

import pytest

from tests.told import Segment, Told, difference
from tests.waiting import until


def test_a_missing_key_of_a_segment_is_told_with_the_keys_that_there_are() -> None:
    with pytest.raises(AssertionError, match="segment of job 7 was to have 'held', and has only: state=placed"):
        Segment({"state": "placed"}, 7)["held"]
    assert Segment({"held": "time"}).get("tier") is None


def test_a_missing_value_is_told_with_what_has_the_others() -> None:
    with pytest.raises(AssertionError, match="the reply 'pass' was to have 'gpus', and has only: message=no room"):
        Told({"message": "no room"}, "the reply 'pass'")["gpus"]
    with pytest.raises(AssertionError, match="berthd's status was to have 'gpus', and has only: nothing"):
        Told({}, "berthd's status")["gpus"]


def test_a_wait_in_vain_tells_what_there_was_at_its_end() -> None:
    states = iter(["PENDING", "COMPLETING", "COMPLETING"])
    with pytest.raises(AssertionError, match="waited 0 s in vain: job 7 to run; it is COMPLETING"):
        until(lambda: f"job 7 to run; it is {next(states)}", lambda: next(states) == "RUNNING", seconds=0.0, every=0.0)


def test_a_machine_that_stands_still_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute passes within one turn: the next ones still have their time."""
    now, jumps = [0.0], iter([0.1, 60.0, 0.1])

    def sleep(_: float) -> None:
        now[0] += next(jumps)

    monkeypatch.setattr("tests.waiting.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tests.waiting.time.sleep", sleep)
    assert until("a minute to pass", lambda: now[0] > 60.15, seconds=10.0)


def test_bytes_that_differ_are_told_with_their_line() -> None:
    written, read = b"a=1\nb=2\n", b"a=1\nb=3\n"
    with pytest.raises(AssertionError, match="bytes part at 6, in line 2"):
        assert written == read
    assert (
        difference(b"a\n" * 200 + b"k=1\n", b"a\n" * 200)[0] == "bytes part at 400, in line 201; 404 bytes beside 400"
    )
