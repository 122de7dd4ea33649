# SPDX-License-Identifier: Apache-2.0
"""An opinion is asked only where its matter is present, and would say nothing elsewhere."""

import copy
from collections.abc import Callable, ValuesView
from typing import Any

import pytest

from policy.cluster.reserved import know_users_by
from policy.daemon.known.users import names_of
from policy.formats.slurm_facts import PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.jobs.waiting import Matter
from policy.plan.opinions.opinion import Opinion, PassState
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.policy_world import book, node, reading, running, waiting

from .test_isolation_everywhere import plain_tests


def asked(monkeypatch: pytest.MonkeyPatch, settings: Settings, *jobs: Any, **look: Any) -> set[Matter | None]:
    """Plans a queue, and returns what the opinions that were asked are about."""
    found = list[Matter | None]()

    def begin(self: Opinion, state: PassState) -> bool:
        found.append(self.about)
        return original(self, state)

    original = Opinion.begin
    monkeypatch.setattr(Opinion, "begin", begin)
    seen = reading([node("n1", used=0xFF), node("n2")], [running(1, "n1", 0xFF, 600), *jobs], **look)
    Plan(BerthPolicy(), settings).replan(book(seen), seen.jobs)
    return set(found)


def test_where_nothing_is_present_no_opinion_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, Settings(), waiting(2, "n1", 0b11)) == set()


def test_a_job_a_setting_or_a_partition_brings_an_opinion_in(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (PartitionFacts("gpu", default=True), PartitionFacts("other"))

    assert asked(monkeypatch, Settings(), waiting(2, "n1", 0b11), waiting(3, "n1", 1, het=3)) == {Matter.COMPONENTS}
    gang = waiting(3, "n1", 0xFF, count=2, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    assert asked(monkeypatch, Settings(), waiting(2, "n1", 0b11), gang) == {Matter.SPEED}
    assert asked(monkeypatch, Settings(), partitions=two) == {Matter.PARTITIONS}
    assert asked(monkeypatch, Settings(pin_ahead=False)) == {Matter.ELSEWHERE}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_not_asked_would_have_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    know_users_by(names_of)
    passes = 0

    def compared(make_pass: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(plan: Plan, *arguments: Any, **more: Any) -> Any:
            nonlocal passes
            arguments = tuple(list(one) if isinstance(one, ValuesView) else one for one in arguments)
            other, same, other_more = copy.deepcopy((plan, arguments, more))
            for one in other.opinions:
                one.about = None  # type: ignore[misc]
            changes = make_pass(plan, *arguments, **more)
            assert make_pass(other, *same, **other_more) == changes
            assert [(one.job.id, one.last) for one in other.queue] == [(one.job.id, one.last) for one in plan.queue]
            passes += 1
            return changes

        return wrapped

    replan, freed = compared(Plan.replan), compared(Plan.freed)
    for _, test in plain_tests():
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "replan", replan)
            patch.setattr(Plan, "freed", freed)
            test()
    assert passes > 300
