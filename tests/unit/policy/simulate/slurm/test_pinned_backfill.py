# SPDX-License-Identifier: Apache-2.0
"""Backfill on paper, step by step as sched/backfill and select/cons_tres of real Slurm take it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.view import View
from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.play import run
from policy.simulate.slurm.backfill.ahead import Ahead
from policy.simulate.slurm.backfill.reserved import Reserved
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.nodes.tree_choice import TreeChoice, berth_of
from policy.simulate.slurm.queue.jobs import Task, Tasks
from policy.simulate.slurm.settings import Delays
from policy.simulate.world import Layout, build
from tests.unit.policy.simulate.slurm.test_simulate_pinned import PLAIN, Bench, chosen, job
from topology.network.blocks import Blocks

ALL = 0b111


# The table of what is planned


def test_reservations_close_nodes_for_their_time() -> None:
    plan = Reserved(3, 0, 60)
    plan.reserve([1], 60, 120)

    assert plan.open_for(0, 30, ALL)[0] == 0b111
    assert plan.open_for(0, 90, ALL)[0] == 0b101
    assert plan.open_for(120, 1_000_000, ALL)[0] == 0b111
    assert plan.as_array(0b101).tolist() == [True, False, True]
    assert plan.overlaps([0, 1], 0, 61)
    assert not plan.overlaps([0, 1], 0, 60)
    assert not plan.overlaps([0, 2], 0, 1_000)


def test_stretches_that_do_not_differ_become_one() -> None:
    plan = Reserved(2, 0, 60)
    plan.reserve([0], 60, 120)
    plan.reserve([0], 120, 180)

    # One stretch until 180: what opens then is the next moment worth a try.
    assert plan.open_for(60, 90, 0b11) == (0b10, 180)
    assert plan.overlaps([0], 60, 180)
    assert not plan.overlaps([0], 180, 240)


@pytest.mark.parametrize(("start", "limit", "slot"), [(0, 60, (0, 60)), (61, 60, (60, 180)), (119, 1, (60, 120))])
def test_what_is_planned_holds_its_nodes_from_minute_to_minute(start: int, limit: int, slot: tuple[int, int]) -> None:
    assert Reserved(1, 0, 60).slot(start, limit) == slot


def test_a_later_start_is_tried_where_nodes_open_and_not_where_they_close() -> None:
    plan = Reserved(3, 0, 60)
    plan.reserve([0, 1], 0, 120)
    plan.reserve([2], 180, 240)

    assert plan.open_for(0, 60, ALL)[1] == 120
    assert plan.open_for(120, 180, ALL)[1] == 240
    # As in Slurm: a stretch that begins after the job's end counts for its neighbour.
    assert plan.open_for(0, 60, 0b100)[1] == 240
    assert plan.open_for(0, 200, 0b001)[1] == 120
    assert plan.open_for(130, 1_000, 0b001)[1] is None


# When running jobs end


def ahead(ends: Sequence[tuple[int, int, int]], *, by_nodes: bool) -> tuple[Ahead, Task]:
    """Jobs of some GPUs that end at some second on some node of four; and one that wants eight GPUs."""
    fleet = replace(build(Layout(4, 8, nodes_per_leaf=4)), cpus=np.full(4, 16, np.int64))
    ledger, tasks, running = Ledger(fleet), Tasks(fleet, PLAIN), []
    for number, (end, node, gpus) in enumerate(ends, 1):
        one = tasks.of(number, job(str(number), gpus, 0.0))
        free = int(ledger.free[node])
        view = View(fleet, ledger.free, ledger.cpus, fleet.mem, ledger.open, ledger.open)
        one.berth = berth_of(one.demand, view, (node,), ((free & -free) * ((1 << gpus) - 1),), "")
        one.cores = ledger.take(one.berth.nodes, one.berth.masks, end, one.cpus)
        running.append((end, one))
    wanted = tasks.of(99, job("99", 8, 0.0))
    return Ahead(ledger, TreeChoice(ledger), running, 0, by_nodes=by_nodes), wanted


FULL = [(100, 0, 8), (200, 1, 8), (40, 2, 8), (50, 3, 4), (400, 3, 4)]


def test_jobs_that_end_close_to_each_other_are_looked_at_as_one() -> None:
    looked, wanted = ahead(FULL, by_nodes=False)

    # The first end, 40, counts as 60; up to 90 is one batch: node 2 is free at 40, but Slurm says 50.
    assert looked.soonest(wanted, np.ones(4, np.bool_), 0, None) == (50, (2,))


def test_from_25_05_on_a_job_elsewhere_does_not_put_off_a_planned_start() -> None:
    looked, wanted = ahead(FULL, by_nodes=True)

    assert looked.soonest(wanted, np.ones(4, np.bool_), 0, None) == (40, (2,))


@pytest.mark.parametrize("by_nodes", [False, True])
def test_ends_on_other_nodes_and_after_the_bound_are_not_looked_at(by_nodes: bool) -> None:
    looked, wanted = ahead(FULL, by_nodes=by_nodes)
    two = np.array([True, True, False, False])

    assert looked.soonest(wanted, two, 0, None) == (100, (0,))
    assert looked.soonest(wanted, two, 0, 90) is None
    assert looked.soonest(wanted, two, 150, None) == (150, (0,))


def test_a_window_doubles_until_the_next_end_is_in_it() -> None:
    looked, wanted = ahead([(10, 0, 4), (300, 0, 4), (330, 1, 8), (520, 2, 8), (900, 3, 8)], by_nodes=False)

    # 10 counts as 30. Windows of 30, 60, 120, 240 do not reach 300; one of 480 reaches 510, and 330 with it.
    assert looked.soonest(wanted, np.ones(4, np.bool_), 0, None) == (330, (0,))


# Choices and starts


def test_with_blocks_the_last_of_equals_is_taken() -> None:
    fleet = build(Layout(8, 8, nodes_per_leaf=2))
    fabric = replace(fleet.fabric, blocks=Blocks((2,), fleet.fabric.leaf))
    fleet = replace(fleet, fabric=fabric, cpus=np.full(8, 16, np.int64))

    assert [berth.nodes for berth in chosen(fleet, (8, 4, 16, 1))] == [(6,), (7,), (4, 5), (7,)]


@pytest.mark.parametrize(("slurm", "passes"), [("24.11", True), ("25.05", False), ("26.05", False)])
def test_a_small_job_passes_a_gang_whose_planned_start_is_put_off(slurm: str, passes: bool) -> None:
    bench = Bench(nodes=4, settings=replace(PLAIN, slurm=slurm))
    for gpus, node, limit in ((4, 0, 60), (8, 1, 60), (8, 2, 120), (8, 3, 120)):
        bench.add(gpus, on=(node,), limit=limit)
    bench.main()
    bench.add(16)
    small = bench.add(4, limit=60)

    # The gang can have nodes 0 and 1 at 60; what runs on 2 and 3 puts that off to 120.
    assert bench.backfill() == ([small.id] if passes else [])


def test_a_job_beyond_its_limit_still_holds_what_it_holds() -> None:
    bench = Bench(nodes=1, settings=replace(PLAIN, kill=False))
    bench.add(8, limit=60)
    bench.main()
    bench.add(8, limit=60)

    bench.now = 90.0
    assert bench.backfill() == []


@pytest.mark.parametrize("seed", range(4))
def test_without_an_epilog_slurm_looks_at_its_queue_when_the_next_second_begins(seed: int) -> None:
    fleet = replace(build(Layout(1, 8)), cpus=np.full(1, 16, np.int64))
    settings = replace(PLAIN, delays=Delays(epilogs=False), seed=seed)
    # The third waits behind the second: backfill has no part in it.
    asked = [job(str(number), 8, 0.5 * number, work=10.3) for number in range(3)]
    done = run(asked, fleet, SlurmPolicy(), settings)

    waits = [done.starts[after] - done.ends[before] for before, after in (("0", "1"), ("1", "2"))]
    assert all(0.0 < wait < 1.1 for wait in waits)
    assert (done.starts["2"] - done.starts["1"]) % 1.0 == pytest.approx(0.0, abs=1e-6)
