# SPDX-License-Identifier: Apache-2.0
"""What the placement benchmark makes of its runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from policy.simulate.pal_rounds.events import NodeEvent
from tests.bench import placement_families, placement_pairs, placement_rules, placement_slurm
from tests.bench.paper.draw import Weather, drawn_jobs
from tests.bench.placement import Row, figures, row_of, slurm_figures
from tests.bench.placement_families import Case, Family, available, case, families
from tests.bench.placement_pairs import METRICS, Comparison, Pair, one_pair


def pair(seed: int, berth: float, pal: float = 100.0, bound: float = 80.0) -> Pair:
    values = {"berth": berth, "pal": pal, "relaxation": bound, "pinned-random": 2 * pal}
    runs = {
        policy: {**dict.fromkeys(METRICS, value), "moves": 8.0, "jobs": 16.0, "wall_s": 1.0}
        for policy, value in values.items()
    }
    return Pair("any", "fifo", 0, seed, runs)


def row(family: Family, *berth: float, bound: float = 80.0) -> Row:
    return row_of(family, "fifo", [pair(seed, value, bound=bound) for seed, value in enumerate(berth)])


def test_a_gain_is_how_much_less_it_takes_in_the_geometric_mean() -> None:
    gain = Comparison([pair(1, 50.0), pair(2, 98.0)]).gain("berth", METRICS[0])

    assert gain.value == pytest.approx(1 - math.sqrt(0.5 * 0.98))
    assert gain.lower == pytest.approx(0.02)
    assert gain.upper == pytest.approx(0.5)


def test_the_gap_is_closed_by_the_part_of_the_way_to_the_relaxation() -> None:
    closed = Comparison([pair(1, 90.0), pair(2, 90.0)]).gap_closed()

    assert closed is not None
    assert closed.value == pytest.approx(0.5)


def test_without_a_gap_nothing_is_said_of_it() -> None:
    assert Comparison([pair(1, 90.0, bound=100.0)]).gap_closed() is None


def test_figures_are_those_of_the_worst_row() -> None:
    flat, leafpod = Family("flat", "nodes"), Family("leaf", "nodes", "leafpod")
    rows = [
        row(flat, 90.0, 90.0),
        row(flat, 96.0, 96.0),
        # Here the relaxation gains too little to be a measure.
        row(flat, 100.5, 100.5, bound=99.0),
        row(leafpod, 85.0, 85.0),
    ]

    found = {figure.name: figure for figure in figures(rows)}

    assert found["gap_closed_flat"].value == pytest.approx(0.2)
    assert found["gap_closed_flat"].good is False
    assert found["worst_family_lower"].value == pytest.approx(-0.005)
    assert found["leafpod_mean"].value == pytest.approx(0.15)
    assert "events_mean" not in found


def test_names_tell_families_apart() -> None:
    names = [family.name for family in families()]

    assert len(names) == len(set(names))


def test_it_runs_without_the_published_data(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(placement_families, "DATA", placement_families.DATA / "not-there")
    here = [family for family in families() if available(family)]

    assert {family.kind for family in here} >= {"flat", "leafpod", "events"}
    # A workload and scores of its own for each seed.
    one, other = (case(here[0], 0, seed) for seed in (901, 902))
    assert len(one.jobs) == 160
    assert (one.truth["compute"] != other.truth["compute"]).any()


def test_a_pair_runs_all_policies_on_the_same_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(family: Family, trace: int, seed: int) -> Case:
        whole = case(family, trace, seed)
        return replace(whole, jobs=whole.jobs[:20])

    monkeypatch.setattr(placement_pairs, "case", short)

    found = one_pair(Family("small", "nodes", noise=0.05), "srsf", 0, 903).figures

    assert set(found) == {"berth", "pal", "pinned-random", "relaxation"}
    assert all(figures["jobs"] == 20 for figures in found.values())
    assert found["relaxation"]["geomean_jct_s"] <= min(found[policy]["geomean_jct_s"] for policy in found)


@pytest.mark.slow
def test_with_slow_nodes_pal_runs_with_and_without_what_the_detector_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def stormy(family: Family, trace: int, seed: int) -> Case:
        whole = case(family, trace, seed)
        return replace(whole, jobs=whole.jobs[:20], events=[NodeEvent(node, 0.0, 1e6, 3.0) for node in range(4)])

    monkeypatch.setattr(placement_pairs, "case", stormy)

    found = one_pair(Family("storm", "nodes", "events", weather=Weather(1.0)), "fifo", 0, 904).figures

    assert set(found) == {"berth", "pal", "pinned-random", "pal, our scores"}
    assert found["berth"]["avg_jct_s"] < found["pal"]["avg_jct_s"]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty drawn jobs, and one GPU that is slow for class compute, instead of the published data."""
    scores = np.ones((placement_families.NODES, placement_families.GPUS_PER_NODE))
    scores[3, 1] = 2.5
    monkeypatch.setattr(placement_slurm, "_trace", lambda number: tuple(drawn_jobs(20, 1.0, number)))
    monkeypatch.setattr(placement_slurm, "_scores", lambda: {"compute": scores})


@pytest.mark.usefixtures("made_up")
def test_under_slurms_rules_all_policies_get_the_same_jobs_and_limits() -> None:
    by_name = {family.name: family for family in placement_slurm.families()}
    family = by_name["slurm, leaves, limits x 3"]

    pair = placement_slurm.one_pair(family, 0, 1)
    row = placement_slurm.row_of(family.name, [pair, placement_slurm.one_pair(family, 1, 1)])

    assert set(pair.figures) == set(placement_slurm.POLICIES)
    assert {figures["jobs"] for figures in pair.figures.values()} == {20.0}
    assert all(one.limit == pytest.approx(3 * one.work) for one in placement_slurm.jobs_of(family, 0, 1))
    assert placement_slurm.jobs_of(family, 0, 1) != placement_slurm.jobs_of(family, 0, 2)
    assert row.over_pal["berth"].lower <= row.over_pal["berth"].value <= row.over_pal["berth"].upper
    assert "slurm_leaves_over_pal" in {figure.name for figure in slurm_figures([row])}


@pytest.mark.usefixtures("made_up")
def test_a_rule_that_is_turned_off_is_on_again_after_it() -> None:
    family = next(placement_slurm.families())

    first, again = (placement_rules.one_pair(family, 0, 1).figures for _ in range(2))

    assert first == again
    assert set(first) == set(placement_rules.RULES)


def test_without_the_published_data_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_slurm, "DATA", placement_families.DATA / "not-there")

    lacks = placement_slurm.missing()

    assert "pal-sim-64gpu.csv" in lacks
    assert "BERTH_DATA" in lacks
    assert "\n" not in lacks
