# SPDX-License-Identifier: Apache-2.0
"""Who sits where: by share files of jobs that are in the books, and of two for one seat by whose Prolog came last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prolog_epilog.guard.roll import Roll
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from tests.unit.guard_world import UUID, book, strike

OTHER = "GPU-00000000-0000-0000-0000-000000000002"
OLD, NEW = 1_000, 2_000


@pytest.fixture
def roll(tmp_path: Path) -> Roll:
    made = Roll(Paths(tmp_path / "run"))
    files.prepare(made.paths)
    return made


def leaves(roll: Roll, job: int, tier: str, *, start: int = 0, uuids: tuple[str, ...] = (UUID,)) -> None:
    """What the job's Prolog leaves but for the books."""
    numbers = tuple(range(len(uuids)))
    share_file.write(roll.paths, ShareRecord(job, 0, gpus=numbers, minors=numbers, uuids=uuids, tier=tier, start=start))


def seated(roll: Roll, uuid: str = UUID) -> tuple[int | None, int | None]:
    place = roll.seatings().get(uuid)
    found = (place.host, place.guest) if place else (None, None)
    return found[0].job if found[0] else None, found[1].job if found[1] else None


@pytest.mark.parametrize("method", ["time", "ceiling"])
def test_a_share_file_that_outlived_its_epilog_takes_nobodys_seat(roll: Roll, method: str) -> None:
    for job, tier in ((4, GUARANTEED), (5, OPPORTUNISTIC)):
        leaves(roll, job, tier)
    assert seated(roll) == (None, None)

    for job, tier in ((6, GUARANTEED), (7, OPPORTUNISTIC)):
        book(roll.paths, job, (UUID,), method=method)
        leaves(roll, job, tier)

    assert seated(roll) == (6, 7)


def test_who_has_left_the_books_has_left_his_seat_while_his_epilog_goes_on(roll: Roll) -> None:
    book(roll.paths, 7, (UUID,))
    leaves(roll, 7, OPPORTUNISTIC)
    assert seated(roll) == (None, 7)

    strike(roll.paths, 7)

    assert seated(roll) == (None, None)


def test_a_host_keeps_the_gpus_of_which_the_books_name_it(roll: Roll) -> None:
    for uuid in (UUID, OTHER):
        book(roll.paths, 6, (uuid,))
    leaves(roll, 6, GUARANTEED, uuids=(UUID, OTHER))
    assert (seated(roll), seated(roll, OTHER)) == ((6, None), (6, None))

    # Its Epilog takes it out of the books of one GPU after the other.
    state.forget(roll.paths, [UUID])

    assert (seated(roll), seated(roll, OTHER)) == ((None, None), (6, None))


def test_a_job_of_a_set_of_gpus_has_them_all(roll: Roll) -> None:
    book(roll.paths, 6, (UUID, OTHER), method="ceiling")
    leaves(roll, 6, GUARANTEED, uuids=(UUID, OTHER))

    assert (seated(roll), seated(roll, OTHER)) == ((6, None), (6, None))


def test_books_that_cannot_be_read_deny_nobody_his_seat(roll: Roll) -> None:
    book(roll.paths, 7, (UUID,))
    leaves(roll, 7, OPPORTUNISTIC)
    roll.paths.state(UUID).write_text("what a full disk leaves")

    assert seated(roll) == (None, 7)


@pytest.mark.parametrize("tier", [GUARANTEED, OPPORTUNISTIC])
@pytest.mark.parametrize("starts", [(OLD, NEW), (0, 0)])
@pytest.mark.parametrize(("lost", "real"), [(5, 7), (5, 3)])
def test_of_two_for_one_seat_it_is_the_later_ones(
    roll: Roll, tier: str, starts: tuple[int, int], lost: int, real: int
) -> None:
    # No Epilog came for one of them, and the guard has not found that out yet. Job 3 was put back, and runs again.
    for job, start in zip((lost, real), starts, strict=True):
        book(roll.paths, job, (UUID,))
        leaves(roll, job, tier, start=start)
    os.utime(roll.paths.job(lost), (OLD, OLD))

    assert seated(roll) == ((real, None) if tier == GUARANTEED else (None, real))
