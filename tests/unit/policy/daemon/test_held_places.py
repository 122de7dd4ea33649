# SPDX-License-Identifier: Apache-2.0
"""Places that were given to jobs which Slurm has not shown yet: when the clock is set meanwhile, and of packed jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policy.daemon.answer.answerer import Answerer
from policy.daemon.answer.memory import FEW_SHARES, KEPT_FOR, MOST_MISSING, RequestMemory
from policy.daemon.passes.handover import Snapshot
from policy.formats import segment, wire
from policy.plan.ledger.claims import Claim
from policy.site.config import Config
from tests.unit.policy_world import NOW, submit
from tests.unit.share_world import book, node

NOBODY: frozenset[str] = frozenset()
PLACE = Claim((0,), 0b1, 1, 100, NOW, NOW + 600)


def test_a_place_given_after_the_clock_was_set_back_is_kept() -> None:
    held = RequestMemory()
    held.look(NOBODY, NOW, NOW)

    held.hold("a", "1000", PLACE, NOW - 60)
    # It was read before the clock was set, and comes after it.
    held.look(NOBODY, NOW + 1, NOW - 59)

    assert list(held._held) == ["a"]


def test_it_is_taken_at_once_and_not_from_the_former_time_on() -> None:
    other = replace(PLACE, nodes=(1,))
    later = replace(PLACE, start=NOW + 900, end=NOW + 1_500)
    held = RequestMemory()
    held.look(NOBODY, NOW, NOW)
    held.hold("at once", "1000", replace(PLACE, others=(other,)), NOW - 3_600)
    held.hold("after another job", "1000", later, NOW - 3_600)

    held.look(NOBODY, NOW - 3_600, NOW - 3_590)

    there, here = (replace(one, start=NOW - 3_600, end=NOW - 3_000) for one in (other, PLACE))
    assert [one.claim for one in held.places()] == [replace(here, others=(there,)), later]


def test_and_no_longer_than_any_other() -> None:
    held = RequestMemory()
    held.hold("a", "1000", PLACE, NOW)
    held.look(NOBODY, NOW, NOW)
    held.look(NOBODY, NOW - 60, NOW - 60)
    held.hold("b", "1000", PLACE, NOW - 59)
    assert list(held._held) == ["a", "b"]

    held.look(NOBODY, NOW - 60 + KEPT_FOR + 0.5, NOW - 60 + KEPT_FOR + 0.5)
    assert list(held._held) == ["b"]
    held.look(NOBODY, NOW - 59 + KEPT_FOR + 0.5, NOW - 59 + KEPT_FOR + 0.5)
    assert list(held._held) == []


def answerer(at: float = NOW, given_up: Mapping[str, int] = {}) -> Answerer:
    made = Answerer(Config(), "0", 1)
    made.take(shared(given_up), at)
    return made


def shared(given_up: Mapping[str, int] = {}) -> Snapshot:
    """A node whose GPUs can be shared."""
    return Snapshot(book([node("n1")]).cluster, NOBODY, "24.11.5", "recorded", "", given_up=given_up)


def put(made: Answerer, nonce: str, uid: str = "1000", at: float = NOW) -> dict[str, str]:
    asks = {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-share": "10"}
    reply = made.answer(wire.encode("submit", submit(nonce=nonce, uid=uid, **asks)), at)
    assert reply is not None
    return wire.decode(reply).fields


def test_of_packed_jobs_a_few_are_kept_for_every_user() -> None:
    """Slurm would start two that must not meet."""
    made = answerer()
    for number in range(MOST_MISSING):
        made._memory.hold(f"{number:016x}", "1000", PLACE, NOW - 60)
    made.take(shared(), NOW)
    assert not made._memory.keeps("1000", NOW)

    assert put(made, "a" * 16)["gpus"] == "0"
    assert put(made, "b" * 16, uid="1001")["gpus"] == "1"
    for number in range(2 * FEW_SHARES):
        put(made, f"c{number:015x}")
    assert len(made._memory.places()) == FEW_SHARES + 1


@pytest.mark.parametrize(("given_up", "share"), [({}, "10"), ({"n1": 1, "n9": 1}, None), ({"n1": 2}, "10")])
def test_where_a_job_has_still_to_give_up_its_part_the_next_asks_for_the_whole_gpu(
    given_up: dict[str, int], share: str | None
) -> None:
    reply = put(answerer(given_up=given_up), "a" * 16)
    values = segment.fields(f"[berth/1 {reply['segment']}]") or {}
    assert (reply["gpus"], reply.get("share"), values.get("whole")) == ("0", share, None if share else "1")
