# SPDX-License-Identifier: Apache-2.0
"""Run-time prediction: what it learns, what it falls back on, and that it says how sure it is."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.history import runtime
from policy.history.runtime import KnownAtSubmission, Prediction, RunTimes

TRAIN = KnownAtSubmission("ann", "train", "lab", 8, 86_400.0)


def taught(asked: KnownAtSubmission, *seconds: float) -> RunTimes:
    times = RunTimes()
    for one in seconds:
        times.learn(asked, one)
    return times


def test_without_any_history_a_part_of_the_limit_is_left() -> None:
    guess = RunTimes().predict(TRAIN)

    assert guess.low < guess.median < guess.high == 86_400
    assert guess.confidence == 0


@pytest.mark.parametrize(
    ("values", "quantiles"),
    [([5.0], (5.0, 5.0, 5.0)), ([3.0, 1.0, 2.0], (1.0, 2.0, 3.0)), ([9.0, 3.0, 1.0, 2.0], (1.0, 2.0, 3.0))],
)
def test_quantiles_of_few_values_are_among_these_and_the_oldest_go(
    values: list[float], quantiles: tuple[float, ...]
) -> None:
    window = runtime._Window(3)
    for value in values:
        window.add(value)
    assert window.quantiles() == quantiles


def test_a_job_belongs_to_the_groups_of_what_is_known_of_it() -> None:
    def groups(asked: KnownAtSubmission) -> list[object]:
        return [key for key, _ in RunTimes()._groups(asked)]

    own, rest = ("own", "lab", "ann", "train", 8), [("size", 8), ("all",)]
    of_user = [("user-size", "ann", 8), ("user", "ann"), ("account-size", "lab", 8), ("account", "lab")]
    assert groups(TRAIN) == [own, *of_user, *rest, ("fraction", "ann")]
    assert groups(replace(TRAIN, name="")) == [(*own[:3], "", 8), *of_user[1:], *rest, ("fraction", "ann")]
    nobody = replace(TRAIN, user="", name="")
    assert groups(nobody) == [("own", "lab", "", "", 8), ("account", "lab"), *rest, ("fraction", "lab")]
    for limit in (0.0, math.inf):
        assert groups(replace(nobody, limit=limit))[-1] == ("all",), "of no limit there is no part"


def test_fifty_jobs_of_late_count_for_the_confidence() -> None:
    steady = taught(TRAIN, *[3_600.0] * 400)
    # All 50 were held: 50 of 54.
    assert steady.predict(TRAIN).confidence == pytest.approx(50 / 54, abs=0.001)
    for _ in range(10):
        steady.learn(TRAIN, 60.0)
    assert steady.predict(TRAIN).confidence < 0.85


def test_without_history_and_limit_it_still_answers() -> None:
    guess = RunTimes().predict(KnownAtSubmission("", "", "", 1))

    assert 0 < guess.low < guess.median < guess.high < math.inf


def test_it_finds_the_quantiles_of_a_steady_user() -> None:
    draw = random.Random(1)
    guess = taught(TRAIN, *(math.exp(draw.uniform(5, 9)) for _ in range(2_000))).predict(TRAIN)

    assert math.log(guess.low) == pytest.approx(5.4, abs=0.4)
    assert math.log(guess.median) == pytest.approx(7.0, abs=0.4)
    assert math.log(guess.high) == pytest.approx(8.6, abs=0.4)
    assert guess.confidence == pytest.approx(0.8, abs=0.12)


def test_a_users_own_record_counts_more_than_that_of_others() -> None:
    times = RunTimes()
    for _ in range(60):
        times.learn(TRAIN, 40_000)
        times.learn(KnownAtSubmission("bob", "eval", "lab", 1, 86_400.0), 60)

    assert times.predict(TRAIN).median > 15_000
    assert times.predict(KnownAtSubmission("bob", "eval", "lab", 1, 86_400.0)).median < 200


def test_an_unknown_user_gets_what_jobs_of_that_account_and_size_take() -> None:
    times = taught(TRAIN, *[5_000.0] * 30)

    assert 3_000 < times.predict(KnownAtSubmission("new", "first", "lab", 8, 86_400.0)).median < 7_000


def test_limits_help_where_a_user_uses_a_steady_part_of_them() -> None:
    times = RunTimes()
    draw = random.Random(2)
    for _ in range(300):
        limit = draw.choice([600.0, 6_000.0, 60_000.0])
        times.learn(KnownAtSubmission("ann", "sweep", "lab", 1, limit), limit * draw.uniform(0.4, 0.6))

    short, long = (
        times.predict(KnownAtSubmission("ann", "sweep", "lab", 1, limit)).median for limit in (600.0, 60_000.0)
    )
    assert long > 2.5 * short


def test_a_change_of_habit_is_followed() -> None:
    times = taught(TRAIN, *[100.0] * 300, *[10_000.0] * 60)

    assert times.predict(TRAIN).median > 3_000


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.floats(0, 1e7)), max_size=60),
    st.floats(1, 1e7),
)
def test_predictions_are_ordered_finite_and_within_the_limit(ran: list[tuple[str, int, float]], limit: float) -> None:
    times = RunTimes()
    for user, gpus, seconds in ran:
        times.learn(KnownAtSubmission(user, "", "lab", gpus, limit), seconds)
    guess = times.predict(KnownAtSubmission("a", "", "lab", 1, limit))

    assert 0 < guess.low <= guess.median <= guess.high <= limit
    assert 0 <= guess.confidence <= 1


def test_asking_does_not_change_what_is_known() -> None:
    times = taught(TRAIN, 100.0, 200.0)
    before = times.predict(TRAIN)
    for number in range(50):
        times.predict(KnownAtSubmission(f"user{number}", "job", "lab", 8, 86_400.0))

    assert times.predict(TRAIN) == before


def test_old_groups_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MOST_GROUPS", 50)
    times = RunTimes()
    for number in range(200):
        times.learn(KnownAtSubmission(f"user{number}", "job", "lab", 8), 100.0)

    assert len(times._windows) <= 50
    assert len(times._records) <= 50
    assert times.predict(KnownAtSubmission("user199", "job", "lab", 8)).median == pytest.approx(100.0)


@pytest.mark.parametrize("seconds", [600.0, 3_600.0, 10_000.0, 50_000.0])
def test_jobs_that_run_for_the_same_time_each_are_trusted(seconds: float) -> None:
    # Quantiles come back from logarithms, and no such job was between them.
    assert taught(TRAIN, *[seconds] * 30).predict(TRAIN).confidence > 0.7


def test_the_expected_run_time_counts_the_few_jobs_that_run_long() -> None:
    assert Prediction(60.0, 600.0, 36_000.0, 0.8).mean == pytest.approx(0.3 * 60 + 0.4 * 600 + 0.3 * 36_000)
