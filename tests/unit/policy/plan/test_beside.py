# SPDX-License-Identifier: Apache-2.0
"""Looking at a cluster that runs without Berth, from one reading: plain GRES types, no segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from policy.cluster.fleet import build_fleet, scores_on
from policy.cluster.untyped import numbered
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.placement.registry import create
from policy.plan.answer.beside import Onlooker, Seen
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from topology.network.fabric import Fabric
from topology.providers.slurm_layout import Leaf, SlurmFabric
from topology.scores import Score

from ...policy_world import machine, node, reading, running


def plain(name: str, used: int = 0, **changes: object) -> NodeFacts:
    """A node as a cluster without Berth has it: `gpu:TYPE:8`."""
    return node(name, used=used, gpus=0, loose=8, seats=0, **changes)


def held(job: int, *places: tuple[str, int], **changes: object) -> JobFacts:
    """A job of the user's own, without a word of Berth's."""
    facts: dict[str, object] = {
        "nodes": tuple(name for name, _ in places),
        "holds": tuple(mask for _, mask in places),
        "required": (),
        "gpus": None,
        "plan": None,
        "cpus": len(places),
        "count": len(places),
        **changes,
    }
    return replace(running(job, places[0][0], 0, 600), **facts)  # type: ignore[arg-type]


def waits(job: int, **changes: object) -> JobFacts:
    """A job that waits, of one node, with one CPU."""
    facts: dict[str, object] = {"state": "PENDING", "start": None, "end": None, "reason": "Resources", **changes}
    return held(job, ("", 0), nodes=(), holds=(), **facts)


def look(
    nodes: Sequence[NodeFacts],
    jobs: Sequence[JobFacts],
    kinds: Mapping[str, str],
    *,
    leaves: Sequence[Leaf] = (),
    scores: Sequence[Score] = (),
    asked: Mapping[int, int] | None = None,
) -> Seen:
    found: Reading = numbered(reading(list(nodes), list(jobs)))
    machines = {name: machine(name, kind) for name, kind in kinds.items()}
    fabric = Fabric.of(machines.values(), SlurmFabric("topology.conf", "tree", tuple(leaves)) if leaves else None)
    fleet = build_fleet(found.nodes, found.partitions, machines, found.memory, memory_counts=True, fabric=fabric)
    fleet = replace(fleet, scores=scores_on(fleet, scores))
    policy = create("berth")
    return Onlooker(fleet, frozenset(kinds), policy, Plan(policy, Settings())).look(found, asked or {})


def test_gpus_of_plain_nodes_are_counted_free() -> None:
    seen = look([plain("n1", used=0b101), plain("n2")], [held(1, ("n1", 0b101))], {"n1": "a6000", "n2": "a6000"})

    assert (seen.gpus, seen.free, seen.nodes) == (16, 14, 2)


def test_a_pair_without_a_link_is_shown_with_a_linked_pair_that_is_free() -> None:
    seen = look([plain("n1", used=0b101)], [held(1, ("n1", 0b101))], {"n1": "a6000"})

    (job,) = seen.running
    assert job.unlinked
    assert job.best is not None
    assert job.best.gpus == (0, 1)


@pytest.mark.parametrize("kind", ["l40s", "h100"])
def test_a_pair_is_not_blamed_where_all_pairs_are_alike(kind: str) -> None:
    (job,) = look([plain("n1", used=0b101)], [held(1, ("n1", 0b101))], {"n1": kind}).running

    assert not job.unlinked
    assert not job.weaker


def test_a_job_is_compared_on_the_nodes_that_its_user_named() -> None:
    nodes = [plain("n1", used=0b1111_1111), plain("n2")]
    jobs = [held(1, ("n1", 0b101), required=("n1",)), held(2, ("n1", 0b1111_1010))]

    first, _ = look(nodes, jobs, {"n1": "a6000", "n2": "a6000"}).running

    assert first.unlinked
    assert first.best is None


def test_a_gang_in_two_leaves_is_shown_also_without_known_links() -> None:
    nodes = [plain(name) for name in ("n1", "n2", "n3", "n4")]
    leaves = [Leaf("a", ("n1", "n2")), Leaf("b", ("n3", "n4"))]
    jobs = [held(1, ("n1", 0xFF), ("n3", 0xFF)), held(2, ("n2", 0xFF), ("n4", 0x0F))]

    spread, uneven = look(nodes, jobs, dict.fromkeys(("n1", "n2", "n3", "n4"), "h100"), leaves=leaves).running

    assert (spread.leaves, spread.leaves_needed, spread.spread) == (2, 1, True)
    assert uneven.spread
    assert uneven.best is None


def test_jobs_on_slow_gpus_are_named() -> None:
    scores = [Score("n1", 3, "", "compute", 1.25), Score("n1", 0, "", "compute", 1.05)]

    slow, fine = look(
        [plain("n1", used=0b1111)], [held(1, ("n1", 0b1100)), held(2, ("n1", 0b0011))], {"n1": "h100"}, scores=scores
    ).running

    assert slow.slow == (("n1", 3, 1.25),)
    assert not fine.slow


def test_waiting_jobs_are_counted_by_reason_and_planned_in_slurms_order() -> None:
    nodes = [plain("n1", used=0x7F)]
    jobs = [
        held(1, ("n1", 0x7F)),
        waits(2, priority=9),
        waits(3, priority=5),
        waits(4, reason="QOSMaxGRESPerUser"),
    ]

    seen = look(nodes, jobs, {"n1": "h100"}, asked={2: 2, 3: 1, 4: 1})

    assert {reason: [job.id for job in found] for reason, found in seen.waits.items()} == {
        "Resources": [2, 3],
        "QOSMaxGRESPerUser": [4],
    }
    assert 2 not in [move.job.id for move in seen.planned if move.start <= 0]
    assert {move.job.id for move in seen.planned if move.start <= 0} <= {3}


def test_a_job_whose_gpus_slurm_does_not_tell_is_counted_and_not_compared() -> None:
    seen = look([plain("n1")], [held(1, ("n1", 0), holds=())], {"n1": "a6000"})

    assert seen.unread == 1
    assert not seen.running


def test_an_unchanged_node_stays_the_same_object() -> None:
    first, again = (numbered(reading([plain("n1"), node("n2")], [])) for _ in range(2))

    assert all(one is two for one, two in zip(first.nodes, again.nodes, strict=True) if one.name == "n1")
    assert first.nodes[0].gpus == 8
