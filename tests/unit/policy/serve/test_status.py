# SPDX-License-Identifier: Apache-2.0
"""What berthd says of itself is asked once for all who want to know."""

import threading
from collections.abc import Mapping

import pytest

from policy.formats.errors import DaemonError
from policy.serve import status as module
from policy.serve.status import STATUS_FOR, BerthdStatus


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_an_answer_and_a_silence_are_told_on_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = Clock(), iter([{"waiting": "1"}, None, {"waiting": "2"}])
    monkeypatch.setattr(module, "time", clock)

    def ask() -> Mapping[str, str]:
        told = next(answers)
        if told is None:
            raise DaemonError("berthd does not answer")
        return told

    status = BerthdStatus(ask)
    for clock.now in (0.0, STATUS_FOR):
        assert status.told() == {"waiting": "1"}
    for clock.now in (1.5 * STATUS_FOR, 2 * STATUS_FOR):
        with pytest.raises(DaemonError, match="does not answer"):
            status.told()
    clock.now = 3 * STATUS_FOR
    assert status.told() == {"waiting": "2"}


def test_many_who_ask_a_berthd_that_hangs_wait_for_one_answer() -> None:
    go, asked, told = threading.Event(), list[int](), list[str]()

    def ask() -> Mapping[str, str]:
        asked.append(1)
        assert go.wait(20)
        raise DaemonError("it hangs")

    def one() -> None:
        try:
            status.told()
        except DaemonError as problem:
            told.append(str(problem))

    status = BerthdStatus(ask)
    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(20)
    assert told == ["it hangs"] * 8
    assert len(asked) == 1
