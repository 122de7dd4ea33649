# SPDX-License-Identifier: Apache-2.0
"""What somebody waits for is not held up by what is only told, and a slow Slurm is asked again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from prolog_epilog.errors import NodeSlurmError
from prolog_epilog.guard.hold.ending import GuestEnd
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.tell.notice import GuardNotice, Payload
from prolog_epilog.guard.tell.slow_work import SlowWork

GUEST = Member(42, 1000, ("GPU-0",), {}, "time")


@dataclass
class Slurm:
    order: list[str]
    slow: bool = False

    def is_sent_away(self, job: int) -> bool:
        self.order.append(f"is {job} sent away")
        if self.slow:
            raise NodeSlurmError("scontrol did not answer")
        return True


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def slurm(order: list[str]) -> Slurm:
    return Slurm(order)


@pytest.fixture
def slow_work(slurm: Slurm, order: list[str]) -> SlowWork:
    def tell(_options: NoticeOptions, one: Payload) -> bool:
        order.append(one.text.split("gpu=")[1].split()[0])
        return True

    return SlowWork(slurm, NoticeOptions(("ctl",)), order.append, lambda _: None, tell)  # type: ignore[arg-type]


def test_a_question_goes_before_what_is_only_told(slow_work: SlowWork, order: list[str]) -> None:
    for gpu in (3, 1, 2):
        slow_work.notify(GuardNotice("n1", gpu, "healthy"))
    slow_work.is_sent_away(GUEST)
    for _ in range(4):
        slow_work.run(0.0)

    assert order == ["is 42 sent away", "3", "1", "2"]


def test_slurm_is_asked_again_where_it_did_not_say(slow_work: SlowWork, slurm: Slurm, order: list[str]) -> None:
    guest_end = GuestEnd(slow_work, GUEST)
    slurm.slow = True
    guest_end.stirs(10.0)
    assert guest_end.turn(10.0) is None
    slow_work.run(0.0)
    slurm.slow = False

    assert guest_end.turn(10.5) is None
    assert guest_end.turn(12.5) is None
    slow_work.run(0.0)
    assert guest_end.turn(12.6) == 12.5
    assert order == ["is 42 sent away", "scontrol did not answer", "is 42 sent away"]
