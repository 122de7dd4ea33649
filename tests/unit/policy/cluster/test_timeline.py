# SPDX-License-Identifier: Apache-2.0
"""What is free on a node over time: nothing is ever promised that is not there."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

import policy.cluster.timeline
from policy.cluster.snapshot import COLUMNS
from policy.cluster.timeline import State, columns, normal, taken
from policy.formats.arrays import FAR

ALL: State = (0.0, 0xFF, 16, 64_000)
CLAIMS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 0xFF), st.integers(0, 8), st.integers(0, 9_000)),
    max_size=12,
)


def free_at(row: list[State], moment: float) -> State:
    return max(state for state in row if state[0] <= moment)


@given(CLAIMS)
def test_what_is_taken_is_not_free_while_it_is_taken(claims: list[tuple[int, int, int, int, int]]) -> None:
    row, held = list(zip(*columns(normal([ALL])), strict=True)), []
    for start, length, mask, cpus, mem in claims:
        row = taken(row, start, start + length, mask, cpus, mem)
        row = list(zip(*columns(normal(row)), strict=True))
        held.append((start, start + length, mask, cpus, mem))

    assert len(row) == COLUMNS
    assert row == sorted(row)
    assert row[-1][1:] == ALL[1:]
    for moment in {state[0] for state in row}:
        _, gpus, cpus, mem = free_at(row, moment)
        now = [one for one in held if one[0] <= moment < one[1]]
        assert not any(gpus & mask for _, _, mask, _, _ in now)
        assert cpus <= max(0, ALL[2] - sum(one[3] for one in now))
        assert mem <= max(0, ALL[3] - sum(one[4] for one in now))


def test_what_is_taken_for_good_does_not_come_back() -> None:
    assert taken([ALL], 5.0, FAR, 0x0F, 4, 1_000) == [(0.0, 0xF0, 12, 63_000)]


def test_the_examples_hold() -> None:
    assert doctest.testmod(policy.cluster.timeline, raise_on_error=True).attempted == 1
