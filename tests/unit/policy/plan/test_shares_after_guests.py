# SPDX-License-Identifier: Apache-2.0
"""Packed jobs on GPUs with a guest, whom Slurm does not count: the guest leaves first, and only then they start."""

import pytest

from policy.formats import plan_fields, segment
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved
from policy.plan.ledger.changes import Change, Evict, Move
from policy.request.settings import Settings
from tests.unit.deciding import decide
from tests.unit.guest_world import NOW, book, guest, node, plan, running
from tests.unit.policy_world import submit
from tests.unit.share_world import packed, packed_waiting

GUESTS = [guest(1, "n1", 0)]
OTHERS = running(9, "n1", 0xFE, 9_000)
WHOLE: dict[str, object] = {"share": 0, "segment": {"whole": "1"}}


def planned(waits: JobFacts, guests: list[JobFacts]) -> tuple[list[JobPlan], list[int]]:
    """The pins that a job gets, and who has to go for it."""
    changes: list[Change] = plan([node("n1", used=0xFE, seats_used=len(guests))], [OTHERS, *guests, waits])
    pins = [moved(one, NOW) for one in changes if isinstance(one, Move) and one.job.id == waits.id]
    return pins, [one.job.id for one in changes if isinstance(one, Evict)]


def as_pinned(one: JobPlan) -> tuple[tuple[int, ...], bool, bool, str]:
    """GPUs, seats, whether they are whole, and the state."""
    return one[plan_fields.GPUS], one[plan_fields.SEATS], plan_fields.WHOLE in one, one[plan_fields.STATE]


def test_at_its_submission_it_asks_for_the_whole_gpu_and_its_seat() -> None:
    asks = submit(tres_per_job="gres/gpu:1", gpus="1", **{"flag.gpu-share": "50"})
    there = book([node("n1", used=0xFE, seats_used=1)], [OTHERS, *GUESTS])
    beside = decide(asks, there, BerthPolicy(), Settings(), NOW)
    values = segment.fields(f"[berth/1 {beside.fields['segment']}]") or {}

    assert (values["nodes"], values["gpus"], values["seats"], values["whole"]) == ("n1", "0", "1", "1")
    assert "share" not in beside.fields
    assert beside.claim is not None
    assert there.displaces(beside.claim)

    alone = decide(asks, book([node("n1", used=0xFE)], [OTHERS]), BerthPolicy(), Settings(), NOW)
    assert alone.fields["share"] == "50"


def test_a_gpu_without_a_guest_is_taken_first() -> None:
    there = book([node("n1", used=0xFC, seats_used=1)], [running(9, "n1", 0xFC, 9_000), *GUESTS])
    asks = submit(tres_per_job="gres/gpu:1", gpus="1", **{"flag.gpu-share": "50"})
    reply = decide(asks, there, BerthPolicy(), Settings(), NOW).fields
    assert (reply["gpus"], reply["share"]) == ("1", "50")


@pytest.mark.parametrize("pinned", [{}, WHOLE], ids=["to its part", "to whole GPUs"])
def test_while_the_guest_is_there_it_asks_for_the_whole_gpu(pinned: dict[str, object]) -> None:
    pins, leave = planned(packed_waiting(5, "n1", 0, 50, **pinned), GUESTS)
    assert leave == [1]
    assert [
        (one[plan_fields.GPUS], one[plan_fields.SEATS], plan_fields.WHOLE in one, one[plan_fields.STATE])
        for one in pins
    ] == ([] if pinned else [((0,), True, True, plan_fields.WAITING)])


def test_it_gets_its_part_when_the_guest_has_gone() -> None:
    pins, leave = planned(packed_waiting(5, "n1", 0, 50, **WHOLE), [])
    assert [
        (one[plan_fields.GPUS], one[plan_fields.SEATS], plan_fields.WHOLE in one, one[plan_fields.STATE])
        for one in pins
    ] == [((0,), False, False, plan_fields.PLACED)]
    assert leave == []


def test_one_that_moves_to_such_a_gpu_asks_for_it_whole() -> None:
    away = packed_waiting(5, "n2", 3, 50)
    full = [packed(20 + gpu, "n2", gpu, 60) for gpu in range(8)]
    nodes = [node("n1", used=0xFE, seats_used=1), node("n2", used=0xFF, shared=(60,) * 8)]
    changes = plan(nodes, [OTHERS, *GUESTS, *full, away])
    [values] = [moved(one, NOW) for one in changes if isinstance(one, Move)]
    assert (values.texts["nodes"], values.texts["gpus"], values.texts["whole"]) == ("n1", "0", "1")
    assert [one.job.id for one in changes if isinstance(one, Evict)] == [1]
