# SPDX-License-Identifier: Apache-2.0
"""The roll-out of the queue: whom it holds back, for how long, and where it leaves everything as it is."""

from dataclasses import replace
from math import inf

import pytest

from policy.plan.jobs.roll_out import MOST_NODES, End, QueuedJob, RoomAhead

EMPTY = 0.0


def job(
    number: int,
    nodes: int,
    gpus: int,
    seconds: float,
    *,
    of: int = 2,
    able: tuple[bool, ...] = (),
    latest: float = 1_000.0,
    kind: str | None = None,
) -> QueuedJob:
    return QueuedJob(number, nodes, gpus, seconds, able or (True,) * of, latest, kind)


HALF_FREE = RoomAhead(0.0, (4, 0), (End(10.0, (1,), 4),))
"""One of two nodes is free, the other in ten seconds."""


def test_a_long_small_job_lets_a_short_gang_go_first() -> None:
    small, gang = job(1, 1, 1, 1000.0), job(2, 2, 4, 100.0)
    # Started now: 1000 + 1100. Held back: the gang ends at 110, the small job at 1110.
    assert HALF_FREE.gain_of_waiting(small, (0,), 1.0, [gang, small]) == pytest.approx(2100 - 1220)


def test_a_gang_is_expected_to_start_on_the_nodes_of_one_block() -> None:
    room = RoomAhead(0.0, (4, 0, 4, 0), (End(10.0, (1,), 4),))
    small, gang = job(1, 1, 1, 1000.0, of=4), replace(job(2, 2, 4, 100.0, of=4), group=(0, 0, 1, 1))
    # Started now: 1000 + 1100. Held back: both start at 10, on both blocks.
    assert room.gain_of_waiting(small, (0,), 1.0, [gang, small]) == pytest.approx(2100 - 1120)
    anywhere = replace(gang, group=None)
    assert room.gain_of_waiting(small, (0,), 1.0, [anywhere, small]) == pytest.approx(0)


def test_a_short_small_job_starts() -> None:
    small, gang = job(1, 1, 1, 5.0), job(2, 2, 4, 100.0)
    assert HALF_FREE.gain_of_waiting(small, (0,), 1.0, [gang, small]) <= 0


@pytest.mark.parametrize(("latest", "gain"), [(9.0, False), (109.0, False), (110.0, True)])
def test_no_job_waits_beyond_the_latest_start_that_keeps_its_promise(latest: float, gain: bool) -> None:
    """Behind the gang it starts after 110 s."""
    small, gang = job(1, 1, 1, 1000.0, latest=latest), job(2, 2, 4, 100.0)
    assert (HALF_FREE.gain_of_waiting(small, (0,), 1.0, [gang, small]) > 0) == gain


@pytest.mark.parametrize(("kind", "latest", "gain"), [("a", 110.0, 770.0), ("a", 109.0, 0.0), ("b", 109.0, -10.0)])
def test_equal_jobs_wait_together_and_none_of_them_beyond_its_promise(kind: str, latest: float, gain: float) -> None:
    small, twin = job(1, 1, 1, 1000.0, kind="a"), job(3, 1, 1, 5.0, latest=latest, kind=kind)
    gang = job(2, 2, 4, 100.0, latest=inf)
    assert HALF_FREE.gain_of_waiting(small, (0,), 1.0, [gang, small, twin]) == pytest.approx(gain)


@pytest.mark.parametrize(("latest", "gain"), [(110.0, 780.0), (109.0, 0.0)])
def test_no_job_waits_if_another_one_would_start_later_than_promised_by_that(latest: float, gain: float) -> None:
    """The third job would have the second node after 10 s; behind the gang it has it after 110 s."""
    small, gang, third = (
        job(1, 1, 1, 1000.0),
        job(2, 2, 4, 100.0),
        job(3, 1, 4, 500.0, latest=latest, able=(False, True)),
    )
    assert HALF_FREE.gain_of_waiting(small, (0,), 1.0, [gang, small, third]) == pytest.approx(gain)


def test_jobs_held_back_already_start_with_the_first_end_too() -> None:
    first, second = job(1, 1, 4, 100.0), job(2, 1, 4, 100.0)
    alone = HALF_FREE.gain_of_waiting(first, (0,), 1.0, [first, second])
    both = HALF_FREE.gain_of_waiting(first, (0,), 1.0, [first, second], held={2})
    # The second would take the free node now; held back, it leaves the node empty, so waiting is worth less.
    assert both < alone <= 0


@pytest.mark.parametrize(
    ("moment", "queue"),
    [
        (RoomAhead(0.0, (4, 0), ()), [job(2, 2, 4, 100.0)]),
        (HALF_FREE, []),
        (RoomAhead(0.0, (4,) * (MOST_NODES + 1), (End(10.0, (1,), 4),)), [job(2, 2, 4, 9.0, of=MOST_NODES + 1)]),
    ],
    ids=["nothing runs", "nobody else waits", "more nodes than are looked at"],
)
def test_where_there_is_no_telling_nobody_waits(moment: RoomAhead, queue: list[QueuedJob]) -> None:
    small = job(1, 1, 1, 1000.0, of=len(moment.free))
    assert moment.gain_of_waiting(small, (0,), 1.0, [*queue, small]) == EMPTY


def test_a_job_that_never_fits_changes_nothing() -> None:
    small, huge = job(1, 1, 1, 1000.0), job(2, 9, 4, 10.0)
    assert HALF_FREE.gain_of_waiting(small, (0,), 1.0, [huge, small]) <= 0
