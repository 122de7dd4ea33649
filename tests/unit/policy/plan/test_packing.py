# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.fleet import build_fleet
from policy.cluster.shared.fragmentation import usual
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import Memory, NodeFacts, PartitionFacts
from policy.placement.berth import ALIKE_CPUS, BerthPolicy
from policy.request.demand import Demand
from tests.bench.sharing_feed import MOST_GPUS, WHOLE, Ask, Nodes, fill
from tests.bench.sharing_packers import BestFit, Fgd
from tests.bench.sharing_packers import usual as usual_requests
from tests.unit.policy_world import running
from tests.unit.share_world import book, node
from topology.model import Gpu, Machine

ANY: frozenset[str] = frozenset()


def small(*nodes: tuple[int, int]) -> Nodes:
    """Nodes with so many GPUs and so many CPUs."""
    made = Nodes.__new__(Nodes)
    made.names = [f"n{k}" for k in range(len(nodes))]
    made.models = np.array(["A"] * len(nodes))
    made.size = np.array([gpus for gpus, _ in nodes])
    made.left = np.where(np.arange(MOST_GPUS) < made.size[:, None], WHOLE, 0)
    made.cpus = np.array([1_000 * cpus for _, cpus in nodes])
    made.mem = np.full(len(nodes), 1_000_000)
    made.changed = np.zeros(len(nodes), dtype=np.int64)
    made.count = 0
    return made


def test_requests_that_differ_in_cpus_alone_are_told_apart() -> None:
    shapes = usual([(1, 81, 4)] * 3 + [(1, 81, 12)])

    assert [shape[:3] for shape in shapes] == [(1, 81, 4), (1, 81, 12)]
    assert [shape.weight for shape in shapes] == pytest.approx([0.75, 0.25])


def test_fgd_keeps_a_whole_gpu_free_where_best_fit_does_not_care() -> None:
    share, whole = Ask(1, 400, 1_000, 1, ANY), Ask(1, 1_000, 1_000, 1, ANY)
    nodes = small((1, 4), (2, 8))
    nodes.take(Ask(1, 500, 1_000, 1, ANY), 1, [0])
    packer = Fgd(usual_requests([share, whole], nodes))

    assert packer(nodes, share) == (1, [0])


def test_a_feed_is_counted_to_the_end() -> None:
    nodes = small((2, 8))
    feed = [Ask(1, 1_000, 1_000, 1, ANY), Ask(2, 1_000, 1_000, 1, ANY), Ask(1, 500, 1_000, 1, ANY)]

    found = fill(nodes, feed, BestFit())

    assert (found.first_refusal, found.at_100, found.at_130) == (50.0, 50.0, 75.0)


def test_no_gpu_is_given_out_twice() -> None:
    nodes = small((1, 8))
    nodes.take(Ask(1, 700, 1, 1, ANY), 0, [0])

    with pytest.raises(RuntimeError, match="more was given out"):
        nodes.take(Ask(1, 400, 1, 1, ANY), 0, [0])


gpu_counts = st.integers(0, 8)


@given(st.lists(st.tuples(gpu_counts, st.integers(0, 64), st.sampled_from("AB")), min_size=1, max_size=4),
       st.integers(1, 8), st.integers(1, 24))  # fmt: skip
def test_whole_gpus_go_where_others_need_them_least(states: list[tuple[int, int, str]], k: int, cpus: int) -> None:
    # n is not linked, so all nodes are equal in bandwidth, and none has a score.
    nodes = [
        NodeFacts(
            name=f"n{place}", cpus=64, cpus_used=64 - left, mem=1_000, mem_used=0, threads=1, up=True,
            completing=False, gpus=8, loose=0, seats=8, gpus_used=(1 << 8 - free) - 1, seats_used=0,
            features=frozenset(), partitions=frozenset({"gpu"}),
        )
        for place, (free, left, _) in enumerate(states)
    ]  # fmt: skip
    machines = {
        one.name: Machine(one.name, kind, tuple(Gpu(g, g, f"{one.name}-{g}") for g in range(8)))
        for one, (*_, kind) in zip(nodes, states, strict=True)
    }
    fleet = build_fleet(nodes, [PartitionFacts("gpu", default=True)], machines, Memory(), memory_counts=True)
    free, left = np.array([0xFF ^ one.gpus_used for one in nodes]), np.array([state[1] for state in states])
    everywhere = np.ones(len(nodes), np.bool_)
    view = View(fleet, free, left, fleet.mem, everywhere, everywhere, cpus_per_gpu=4.0)

    def add(place: int) -> float:
        before = max(0.0, 100 * states[place][0] - 25 * states[place][1])
        return max(0.0, 100 * (states[place][0] - k) - 25 * (states[place][1] - cpus)) - before

    able = [place for place, (gpus, had, _) in enumerate(states) if gpus >= k and had >= cpus]
    of_kind = {kind: sum(gpus for gpus, _, one in states if one == kind) for kind in "AB"}
    size = {kind: 8 * sum(one == kind for *_, one in states) for kind in "AB"}
    used = {states[place][2] for place in able if states[place][0] < 8 or k == 8}
    able = [place for place in able if states[place][0] < 8 or k == 8 or states[place][2] not in used]
    expected = min(
        able,
        # A job on one GPU leaves those alone that have a pair free.
        key=lambda p: (
            k == 1 and states[p][0] > 1,
            add(p) // ALIKE_CPUS,
            -of_kind[states[p][2]] / size[states[p][2]],
            states[p][0],
            p,
        ),
        default=None,
    )
    demand = Demand(1, k, cpus, 1, "node", 3_600, fleet.ready)

    if expected is None:
        with pytest.raises(NotNow):
            BerthPolicy().place(demand, view)
    else:
        assert BerthPolicy().place(demand, view).nodes == (expected,)


@pytest.mark.parametrize(("cpus", "expected"), [(2, "n1"), (30, "n2")])
def test_a_job_with_few_cpus_goes_where_few_are_left(cpus: int, expected: str) -> None:
    # Both nodes have four free GPUs; n1 has two CPUs for each of them, n2 eight.
    nodes = [node("n1", used=0b1111, cpus_used=24), node("n2", used=0b1111, cpus_used=0)]
    opened = book(nodes, [running(1, "n9", 1, 60, cpus=4)] * 40)
    demand = Demand(1, 1, cpus, 1, "node", 3_600, opened.cluster.fleet.ready)

    assert opened.cluster.cpus_per_gpu == pytest.approx(4.0, abs=0.5)
    assert opened.now(demand, BerthPolicy()).names == (expected,)


def test_weight_comes_before_cpus() -> None:
    nodes = [node("n1", used=0b1111, cpus_used=24, weight=9), node("n2", used=0b1111, cpus_used=0, weight=1)]
    opened = book(nodes, [running(1, "n9", 1, 60, cpus=4)] * 40)
    demand = Demand(1, 1, 2, 1, "node", 3_600, opened.cluster.fleet.ready)

    assert opened.now(demand, BerthPolicy()).names == ("n2",)
