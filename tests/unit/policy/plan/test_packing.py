from __future__ import annotations

import numpy as np
import pytest

from policy.cluster.shared.fragmentation import UsualJob, stranded, usual
from policy.formats.errors import NotNow
from policy.plan.share_packing import place_whole
from policy.request.demand import Demand
from tests.bench.sharing_feed import MOST_GPUS, WHOLE, Ask, Nodes, fill
from tests.bench.sharing_packers import BestFit, Fgd
from tests.bench.sharing_packers import usual as usual_requests
from tests.unit.share_world import book, node

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


def test_cpus_that_end_before_the_gpus_do_strand_them() -> None:
    shapes = (UsualJob(1, 100, 8, 1.0),)

    few, enough = stranded(np.array([4, 4]), np.zeros((2, 0), np.int64), np.array([8, 32]), shapes)

    # The next job finds all of both; but only one of four fits into eight CPUs.
    assert (few, enough) == (150.0, 0.0)


def test_requests_that_differ_in_cpus_alone_are_told_apart() -> None:
    shapes = usual([(1, 81, 4)] * 3 + [(1, 81, 12)])

    assert [shape[:3] for shape in shapes] == [(1, 81, 4), (1, 81, 12)]
    assert [shape.weight for shape in shapes] == pytest.approx([0.75, 0.25])


def test_whole_gpus_go_where_they_strand_least() -> None:
    # A job of 2 GPUs: n0 would be left with 6, of which no four-GPU job but one can use four; n1 has just two free.
    cluster = book([node("n0"), node("n1", used=0b111111)], []).cluster
    demand = Demand(1, 2, 1, 1, "node", 3_600, cluster.fleet.ready)

    berth = place_whole(demand, cluster.now(3_600), cluster.tenants, cluster.at, (UsualJob(4, 100, 1, 1.0),))

    assert berth.nodes[0] == 1


def test_whole_gpus_that_nobody_has_are_not_now() -> None:
    cluster = book([node("n0", used=0b11111111)], []).cluster
    demand = Demand(1, 1, 1, 1, "node", 3_600, cluster.fleet.ready)

    with pytest.raises(NotNow, match="no node has 1 free GPU"):
        place_whole(demand, cluster.now(3_600), cluster.tenants, cluster.at, ())


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
