# SPDX-License-Identifier: Apache-2.0
"""Whose request is answered next, and who is sent away for a while."""

import pytest

from policy.daemon.answer.turns import CREDIT, LONGEST, PAID_OFF, USUAL, Turns, asker

DEAR, OTHER = 666, 1


def test_who_was_answered_longest_ago_is_next() -> None:
    turns = Turns()
    for uid in (1, 2, 3, 1):
        turns.took(uid, 0.0, 0.0)

    assert sorted((1, 2, 3, 4), key=turns.of) == [4, 2, 3, 1]


def test_any_number_of_usual_answers_costs_nothing() -> None:
    turns = Turns()
    for _ in range(10_000):
        turns.took(OTHER, USUAL, 0.0)

    assert turns.sent_away(OTHER, 0.0) == 0


def test_who_takes_more_is_sent_away_until_that_is_paid_off(capsys: pytest.CaptureFixture[str]) -> None:
    turns = Turns()
    turns.took(DEAR, USUAL + CREDIT, 0.0)
    assert turns.sent_away(DEAR, 0.0) == 0
    turns.took(DEAR, USUAL + 0.020, 0.0)

    assert turns.sent_away(DEAR, 0.0) == pytest.approx(0.020 / PAID_OFF, abs=1)
    assert turns.sent_away(OTHER, 0.0) == 0
    assert turns.sent_away(DEAR, 0.020 / PAID_OFF + 1) == 0
    assert f"uid {DEAR}" in capsys.readouterr().err


def test_an_account_that_submits_for_many_is_answered_on_a_slow_machine_too() -> None:
    """A gang every two seconds, as in the replay, with a search of 15 ms."""
    turns = Turns()
    for second in range(0, 1_200, 2):
        turns.took(OTHER, 0.015, float(second))
        assert turns.sent_away(OTHER, float(second)) == 0


def test_nobody_is_sent_away_for_longer_than_a_minute() -> None:
    turns = Turns()
    turns.took(DEAR, 100.0, 0.0)

    assert turns.sent_away(DEAR, 0.0) == LONGEST


def test_a_larger_cluster_takes_longer_for_any_answer() -> None:
    turns = Turns()
    turns.nodes(10_000)
    for _ in range(100):
        turns.took(OTHER, 0.019, 0.0)

    assert turns.sent_away(OTHER, 0.0) == 0


def test_of_very_many_users_the_last_ones_are_remembered() -> None:
    turns = Turns()
    for uid in range(5_000):
        turns.took(uid, 10.0, 0.0)

    assert [turns.sent_away(uid, 0.0) > 0 for uid in (0, 4_999)] == [False, True]


def test_only_a_submit_request_has_an_asker() -> None:
    assert asker(b"berth/1 submit\nnonce=0123456789abcdef\nuid=12\nname=x\n") == ("0123456789abcdef", 12)
    assert asker(b"berth/1 status\n") is None
    assert asker(b"berth/1 submit\nnonce=0123456789abcdef\nname=x\nuid=12\n") is None
