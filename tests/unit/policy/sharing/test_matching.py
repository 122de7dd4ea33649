# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.sharing.complement import Complement, Sample, forecast, share, under_share
from policy.sharing.matching import (
    Guests,
    Ints,
    Seats,
    Tables,
    Weights,
    kinds_of,
    match,
    values,
)
from policy.sharing.predictor import Speeds
from tests.bench.paper import baselines
from tests.bench.paper.seats import bearable, likely, trials
from tests.examples import examples

DAY = 86_400.0


def cases() -> st.SearchStrategy[tuple[Seats, Guests, Tables]]:
    return st.integers(0, 10_000).map(case)


def case(seed: int) -> tuple[Seats, Guests, Tables]:
    random = np.random.default_rng(seed)
    hosts, guests, profiles = random.integers(1, 9), random.integers(1, 9), 4
    seats = Seats.of(
        random.integers(profiles, size=hosts).tolist(), random.choice([4.0, 8.0, 16.0], hosts).tolist()
    )  # fmt: skip
    asked = Guests.of(
        random.integers(profiles, size=guests).tolist(), random.choice([1.0, 6.0, 12.0], guests).tolist(),
        random.choice([0.0, 1.0, 3.0], guests).tolist(), random.choice([1.0, 2.0], guests).tolist(),
    )  # fmt: skip
    return seats, asked, Tables(random.random((profiles, profiles)), random.random((profiles, profiles)) < 0.7)


def worth(seats: Seats, guests: Guests, tables: Tables, seat: Ints) -> float:
    kinds = kinds_of(seats)
    table = values(kinds, guests, tables, Weights())
    return float(sum(table[guest, kinds.of[where]] for guest, where in enumerate(seat) if where >= 0))


def valid(seats: Seats, guests: Guests, tables: Tables, seat: Ints) -> bool:
    taken = seat[seat >= 0]
    one_each = len(set(taken.tolist())) == len(taken)
    return one_each and all(
        seats.memory[where] >= guests.memory[guest] and tables.allowed[seats.profile[where], guests.profile[guest]]
        for guest, where in enumerate(seat)
        if where >= 0
    )


@settings(deadline=None, max_examples=examples(60))
@given(cases())
def test_a_matching_by_kinds_is_as_good_as_one_seat_by_seat(made: tuple[Seats, Guests, Tables]) -> None:
    found = match(*made)

    assert valid(*made, found.seat)
    assert worth(*made, found.seat) == pytest.approx(worth(*made, baselines.exact(*made)))
    assert worth(*made, found.seat) == pytest.approx(found.value)


@settings(deadline=None, max_examples=examples(60))
@given(cases())
def test_baselines_give_valid_seats_and_never_more_than_the_matching(made: tuple[Seats, Guests, Tables]) -> None:
    seats, guests, _ = made
    best = match(*made).value
    for seat in (baselines.greedy(*made), baselines.at_random(*made, 1)):
        assert valid(*made, seat)
        assert worth(*made, seat) <= best + 1e-9
    busy = np.array([0.1, 0.5, 0.7, 0.95])
    loaded = baselines.least_loaded(seats, guests, busy)
    assert (busy[seats.profile[loaded[loaded >= 0]]] < 0.8).all()


def test_the_older_guest_gets_the_only_seat() -> None:
    seats = Seats.of([0], [8.0])
    guests = Guests.of([0, 0], [1.0] * 2, [0.0, 3.0])

    assert match(seats, guests, Tables(np.array([[0.7]]), np.array([[True]]))).seat.tolist() == [-1, 0]


def test_hosts_are_kept_at_what_was_promised_to_them() -> None:
    fast, least = np.array([[0.99, 0.97]]), np.array([[0.96, 0.94]])
    speeds = Speeds(fast, fast, least, least, np.ones((1, 2), dtype=np.bool_))

    assert bearable(speeds).tolist() == [[True, False]]
    assert bearable(speeds, least=0.9).tolist() == [[True, True]]


def test_trials_take_what_would_help_most_once_a_pair_and_within_their_number() -> None:
    seats = Seats.of([0, 0, 1], [8.0] * 3)
    guests = Guests.of([0, 0, 1, 1], [1.0] * 4, [0.0] * 4)
    tables = Tables(np.array([[0.9, 0.8], [0.9, 0.5]]), np.array([[True, False], [False, False]]))
    last = match(seats, guests, tables)
    assert (last.seat >= 0).tolist() == [True, True, False, False]

    one = trials(last, guests, tables, ~tables.allowed, 1)
    many = trials(last, guests, tables, ~tables.allowed, 9)

    assert (one >= 0).sum() == 1
    pairs = [(int(seats.profile[where]), int(guests.profile[guest])) for guest, where in enumerate(many) if where >= 0]
    assert len(pairs) == len(set(pairs))
    assert (1, 1) in pairs
    assert len(set(many[many >= 0].tolist())) == (many >= 0).sum()
    assert (trials(last, guests, tables, np.zeros((2, 2), dtype=np.bool_), 9) == -1).all()


def test_nobody_to_place_is_no_trouble() -> None:
    seats, tables = Seats.of([0], [1.0]), Tables(np.array([[0.5]]), np.array([[True]]))

    assert match(seats, Guests.of([], [], []), tables).seat.tolist() == []
    assert match(Seats.of([], []), Guests.of([0], [1.0], [0.0]), tables).seat.tolist() == [-1]
    assert match(seats, Guests.of([0], [2.0], [0.0]), tables).seat.tolist() == [-1]


def test_a_forecast_remembers_yesterdays_peak_and_last_weeks() -> None:
    now = 10 * DAY
    samples = [Sample(now - 60, 20.0), Sample(now - 10 * 60, 99.0)]

    assert forecast(samples, now) == 20.0
    assert forecast([*samples, Sample(now - DAY + 600, 55.0)], now) == 55.0
    assert forecast([*samples, Sample(now - 7 * DAY + 600, 70.0), Sample(now - 3 * DAY, 98.0)], now) == 70.0
    assert forecast([Sample(now - 3_600, 10.0)], now) is None


@given(st.floats(0, 100), st.integers(10, 200))
def test_a_share_is_whole_sms_beside_the_host_and_its_margin(activity: float, sms: int) -> None:
    given_share = share(activity, sms)

    assert given_share == 0 or activity + given_share + 10 <= 100 + 1e-9
    assert given_share <= 90
    assert given_share * sms / 100 == pytest.approx(round(given_share * sms / 100))


def test_shares_where_little_is_left_or_nothing_is_known() -> None:
    assert share(None, 132) == 0
    assert share(85.0, 132) == 0
    assert share(35.0, 132) == pytest.approx(66 * 100 / 132)
    assert share(35.0, 132, Complement(margin=20.0)) == pytest.approx(52 * 100 / 132)


def test_a_job_held_to_a_share_is_slower_and_presses_less() -> None:
    assert under_share(0.8, 0.4, 40.0) == pytest.approx((0.4, 0.2, 0.5))
    assert under_share(0.3, 0.4, 40.0) == (0.3, 0.4, 1.0)
    assert under_share(0.0, 0.0, 40.0) == (0.0, 0.0, 1.0)


def test_expected_work_weighs_a_guest_s_speed_by_what_its_host_will_bear() -> None:
    seats, guests = Seats.of([0], [8.0]), Guests.of([0, 1, 2], [1.0] * 3, [0.0] * 3)
    tables = likely(np.array([[0.9, 0.8, 1.0]]), np.array([[0.75, 0.95, 0.2]]))

    assert match(seats, guests, tables).seat.tolist() == [-1, 0, -1]
    assert not tables.allowed[0, 2]
