# SPDX-License-Identifier: Apache-2.0
"""The published policies: small cases worked out by hand, rules that hold for any, and the published figures."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import ConfigError, NotNow
from policy.placement import registry
from policy.placement.base import Berth, Policy
from policy.placement.published import bins
from policy.placement.published.bins import binned, clusters
from policy.placement.published.packed import PackedPolicy
from policy.placement.published.pal import PalPolicy
from policy.placement.published.pm_first import PmFirstPolicy
from policy.placement.published.random import PinnedRandomPolicy, RandomPolicy
from policy.request.demand import ANY_SPREAD, Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import in_rounds
from policy.simulate.pal_rounds.rounds import RoundsSettings, run
from policy.simulate.world import Layout, build, demand_of, view
from tests.bench.simulate import data_folder, sia_fleet, sia_trace
from tests.examples import examples

PUBLISHED = ("packed", "random", "pinned-random", "pm-first", "pal")


def fleet(scores: Sequence[Sequence[float]], across: float = 1.7) -> Fleet:
    table = np.array(scores, np.float64)
    return build(Layout(*table.shape), {"compute": table}, CostModel(pal_locality(across)))


def demand(on: Fleet, gpus: int, nodes: int | None = None, app_class: str = "compute") -> Demand:
    return demand_of(TraceJob("j", gpus, 0.0, 1.0, nodes=nodes, app_class=app_class), on)


def place(policy: Policy, on: Fleet, gpus: int, free: Sequence[int] | None = None, nodes: int | None = None) -> Berth:
    masks = on.full if free is None else np.array(free, np.int64)
    return policy.place(demand(on, gpus, nodes), view(on, masks))


def gpus_of(berth: Berth) -> dict[int, int]:
    return dict(zip(berth.nodes, berth.masks, strict=True))


EQUAL = [[1.0] * 4] * 4
FAST_AND_SLOW = [[0.9, 0.9, 1.2, 1.2], [1.2, 1.2, 1.2, 1.2], [0.9, 1.2, 1.2, 1.2]]


# ---- packed


@pytest.mark.parametrize(
    ("gpus", "free", "taken"),
    [
        (2, [0b1111, 0b0110, 0b0011, 0b1111], {1: 0b0110}),  # the first exact fit
        (3, [0b0011, 0b1111, 0b0011, 0b1111], {1: 0b0111}),  # else the tightest, lowest positions
        (6, [0b0011, 0b0111, 0b1111, 0b0001], {1: 0b0011, 2: 0b1111}),  # else the emptiest nodes, one by one
        (8, [0b1110, 0b0011, 0b1011, 0b0001], {0: 0b1110, 1: 0b0011, 2: 0b1011}),
    ],
)
def test_packed_takes_an_exact_fit_then_the_tightest_then_the_emptiest_nodes(
    gpus: int, free: list[int], taken: dict[int, int]
) -> None:
    assert gpus_of(place(PackedPolicy(), fleet(EQUAL), gpus, free)) == taken


# ---- pm-first


def test_pm_first_takes_the_fastest_gpus_wherever_they_are() -> None:
    berth = place(PmFirstPolicy(), fleet(FAST_AND_SLOW), 3)

    assert gpus_of(berth) == {0: 0b0011, 2: 0b0001}
    assert berth.cost == pytest.approx(0.9 * 1.7)


def test_pm_first_fills_up_from_the_node_that_matches_the_whole_job_best() -> None:
    # Three fast ones first; of the slow ones node 1 has 4 and node 2 has 3, and the job asks for 4 in all.
    berth = place(PmFirstPolicy(), fleet(FAST_AND_SLOW), 4)

    assert gpus_of(berth) == {0: 0b0011, 1: 0b0001, 2: 0b0001}


def test_pm_first_on_a_fixed_number_of_nodes_takes_the_same_gpus_on_each() -> None:
    on = fleet([[0.9, 1.2, 0.9, 1.2], [0.9, 0.9, 1.2, 1.2], [1.2, 1.2, 0.9, 0.9]])

    assert gpus_of(place(PmFirstPolicy(), on, 2, nodes=2)) == {0: 0b0001, 1: 0b0001}
    assert gpus_of(place(PmFirstPolicy(), on, 2, nodes=1)) == {0: 0b0101}


# ---- pal


def test_pal_walks_the_published_cells_in_the_published_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "binned", lambda scores: scores)
    on = fleet([[0.913, 0.913, 1.0, 2.595]])
    found = bins.bins_of(on, on.scores.get("compute"))

    cells = [(found.values[place], within) for place, within in PalPolicy().cells(view(on, on.full), found)]

    assert cells == [(0.913, True), (1.0, True), (0.913, False), (1.0, False), (2.595, True), (2.595, False)]


def test_pal_prefers_a_slower_node_to_fast_gpus_across_nodes_while_that_is_cheaper() -> None:
    slower_together = place(PalPolicy(), fleet(FAST_AND_SLOW), 3)
    faster_apart = place(PalPolicy(), fleet(FAST_AND_SLOW, across=1.1), 3)

    assert gpus_of(slower_together) == {0: 0b0111}
    assert gpus_of(faster_apart) == {0: 0b0011, 2: 0b0001}
    assert slower_together.cost == pytest.approx(1.2)
    assert faster_apart.cost == pytest.approx(0.9 * 1.1)


def test_pal_leaves_single_gpus_and_jobs_larger_than_a_node_to_pm_first() -> None:
    on = fleet(FAST_AND_SLOW)

    for gpus in (1, 5, 9):
        assert gpus_of(place(PalPolicy(), on, gpus)) == gpus_of(place(PmFirstPolicy(), on, gpus))


def test_of_nodes_that_serve_pal_takes_the_emptiest() -> None:
    free = [0b0011, 0b0111, 0b1111, 0b1111]

    assert gpus_of(place(PalPolicy(), fleet(EQUAL), 2, free)) == {2: 0b0011}


def test_the_most_sensitive_class_is_placed_first() -> None:
    on = fleet(FAST_AND_SLOW)
    demands = [demand(on, 1, app_class=name) for name in ("D", "memory", "compute", "mixed", "compute")]

    assert list(in_rounds(PalPolicy()).order(demands)) == [2, 4, 3, 1, 0]
    assert list(in_rounds(PackedPolicy()).order(demands)) == [0, 1, 2, 3, 4]


def test_new_scores_are_taken_up() -> None:
    policy = PalPolicy()

    assert gpus_of(place(policy, fleet([[1.0, 0.8]]), 1)) == {0: 0b10}
    assert gpus_of(place(policy, fleet([[0.8, 1.0]]), 1)) == {0: 0b01}


# ---- random


def test_pinned_random_answers_the_same_question_the_same_and_random_does_not() -> None:
    on = fleet(EQUAL)

    pinned = {str(gpus_of(place(PinnedRandomPolicy(), on, 4))) for _ in range(5)}
    drawn = {str(gpus_of(place(policy, on, 4))) for policy in [RandomPolicy()] for _ in range(5)}
    other_seeds = {str(gpus_of(place(PinnedRandomPolicy(seed=seed), on, 4))) for seed in range(5)}

    assert (len(pinned), len(drawn)) == (1, 5)
    assert len(other_seeds) == 5


def test_random_draws_every_gpu_equally_often() -> None:
    on, policy = fleet(EQUAL), RandomPolicy(seed=3)
    counts = np.zeros(16)
    for _ in range(800):
        for node, mask in gpus_of(place(policy, on, 4)).items():
            counts[[node * 4 + gpu for gpu in range(4) if mask >> gpu & 1]] += 1

    assert 150 < counts.min() <= counts.max() < 250


# ---- what holds for all


@st.composite
def questions(draw: st.DrawFn) -> tuple[View, Demand]:
    nodes, size = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    scores = draw(st.lists(st.floats(0.5, 3.0), min_size=nodes * size, max_size=nodes * size))
    on = fleet(np.array(scores).reshape(nodes, size).tolist())
    free = draw(st.lists(st.integers(0, (1 << size) - 1), min_size=nodes, max_size=nodes))
    if draw(st.booleans()):
        n = draw(st.integers(1, nodes))
        asked = demand(on, n * draw(st.integers(1, size)), n)
    else:
        asked = demand(on, draw(st.integers(1, nodes * size)))
    return view(on, np.array(free, np.int64)), asked


def possible(moment: View, asked: Demand) -> bool:
    free = [int(mask) for mask in moment.free]
    if asked.n == ANY_SPREAD:
        return sum(mask.bit_count() for mask in free) >= asked.k
    size = int(moment.fleet.size.max())
    sets = [sum(1 << place for place in chosen) for chosen in combinations(range(size), asked.k)]
    return any(sum(mask & one == one for mask in free) >= asked.n for one in sets)


@settings(max_examples=examples(200), deadline=None)
@given(questions(), st.sampled_from(PUBLISHED))
def test_every_policy_places_exactly_what_is_asked_for_on_free_gpus_or_says_not_now(
    question: tuple[View, Demand], name: str
) -> None:
    moment, asked = question
    try:
        berth = registry.create(name).place(asked, moment)
    except NotNow:
        assert not possible(moment, asked)
        return
    assert possible(moment, asked)
    assert sum(mask.bit_count() for mask in berth.masks) == asked.gpus
    assert all(mask & ~int(moment.free[node]) == 0 for node, mask in zip(berth.nodes, berth.masks, strict=True))
    assert list(berth.nodes) == sorted(set(berth.nodes))
    if asked.n != ANY_SPREAD:
        assert len(berth.nodes) == asked.n
        assert len(set(berth.masks)) == 1


@settings(max_examples=examples(100), deadline=None)
@given(questions())
def test_nobody_beats_pm_first_by_its_slowest_gpu(question: tuple[View, Demand]) -> None:
    moment, asked = question
    table = moment.fleet.scores.get("compute")
    assert table is not None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bins, "binned", lambda scores: scores)
            berth = PmFirstPolicy().place(asked, moment)
    except NotNow:
        return
    if asked.n == ANY_SPREAD:
        free = [table[node, gpu] for node, mask in enumerate(moment.free) for gpu in range(8) if int(mask) >> gpu & 1]
        best = sorted(free)[asked.k - 1]
    else:
        size = int(moment.fleet.size.max())
        best = min(
            sorted(
                max(table[node, gpu] for gpu in chosen)
                for node, mask in enumerate(moment.free)
                if all(int(mask) >> gpu & 1 for gpu in chosen)
            )[asked.n - 1 : asked.n]
            or [np.inf]
            for chosen in combinations(range(size), asked.k)
        )[0]
    slowest = max(
        table[node, gpu]
        for node, mask in zip(berth.nodes, berth.masks, strict=True)
        for gpu in range(8)
        if mask >> gpu & 1
    )
    assert slowest == best


# ---- bins


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(0.5, 3.0).map(lambda score: round(score, 3)), min_size=2, max_size=9), st.integers(1, 4))
def test_clusters_are_the_best_there_are(scores: list[float], k: int) -> None:
    values = np.array(scores)

    labels, centroids = clusters(values, k)

    ordered = np.sort(values)
    parts = min(k, np.unique(values).size)
    best = min(
        sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(ordered, cuts))
        for cuts in combinations(range(1, values.size), parts - 1)
    )
    assert float(((values - centroids[labels]) ** 2).sum()) == pytest.approx(best, abs=1e-9)


def test_outliers_get_bins_of_their_own_and_bins_are_relative_to_the_median_centroid() -> None:
    scores = np.array([0.9] * 20 + [1.1] * 20 + [3.0])

    found = binned(scores)

    assert sorted(set(found.tolist())) == pytest.approx([0.9 / 1.1, 1.0, 3.0 / 1.1])


def test_the_coded_search_misses_clusters_as_the_artifact_does() -> None:
    draw = np.random.default_rng(1)
    scores = np.concatenate([draw.normal(middle, 0.002, 30) for middle in (0.9, 1.0, 1.1)])

    assert len(set(binned(scores).tolist())) == 2


def test_equal_scores_make_one_bin() -> None:
    assert set(binned(np.ones(8)).tolist()) == {1.0}


# ---- registry


def test_policies_are_made_by_name_with_options() -> None:
    assert {"berth", *PUBLISHED} <= set(registry.policies())
    assert registry.create("random", seed=7).name == "random"
    assert all(registry.create(name).name == name for name in registry.policies())


def test_wrong_names_and_options_are_told_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no policy pall; did you mean pal"):
        registry.create("pall")
    with pytest.raises(ConfigError, match="policy packed cannot be made with the options speed"):
        registry.create("packed", speed=3)


def test_other_packages_bring_policies_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("mine", "policy.placement.published.packed:PackedPolicy", registry.GROUP),
        EntryPoint("broken", "no.such.module:Policy", registry.GROUP),
    ]

    def found(group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in points if point.group == group and name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", found)

    assert "mine" in registry.policies()
    assert isinstance(registry.create("mine"), PackedPolicy)
    with pytest.raises(ConfigError, match=r"policy broken cannot be loaded from no\.such\.module:Policy"):
        registry.create("broken")


# ---- the published figures

AVERAGE_AND_MAKESPAN_H = {
    # PAL's artifact itself, on trace 1; `place()` of the artifact, asked round by round, on the others.
    ("pal", False): {1: (7.033, 62.77), 3: (29.55449, 71.567), 4: (4.81217, 55.168), 7: (26.82344, 67.089)},
    ("pm-first", False): {1: (7.074, 62.87), 3: (30.97824, 71.567), 4: (5.72530, 55.168), 7: (26.98094, 67.089)},
    ("packed", True): {1: (8.401, 151.47), 3: (59.60449, 105.867), 4: (5.42655, 146.168), 7: (28.36719, 69.189)},
    ("packed", False): {1: (8.343, 74.17), 3: (65.01199, 115.167), 4: (5.14655, 65.668), 7: (35.47907, 82.189)},
}
CASES = [(*policy, trace) for policy, traces in AVERAGE_AND_MAKESPAN_H.items() for trace in traces]
SIA = RoundsSettings(repeat=2.0)
DATA = data_folder()
needs_data = pytest.mark.skipif(
    DATA is None, reason="the published traces and scores are not at hand: set BERTH_DATA to the folder that has pal/"
)


@needs_data
@pytest.mark.published
@pytest.mark.parametrize(("name", "sticky", "trace"), CASES)
def test_the_published_simulation_comes_out_to_a_thousandth(name: str, sticky: bool, trace: int) -> None:
    assert DATA is not None
    policy = in_rounds(registry.create(name), sticky=sticky)

    figures = run(sia_trace(DATA, trace), sia_fleet(DATA), policy, SIA).figures()

    hours = (figures["avg_jct_s"] / 3600, figures["makespan_s"] / 3600)  # type: ignore[operator]
    assert hours == pytest.approx(AVERAGE_AND_MAKESPAN_H[name, sticky][trace], rel=1e-3)


@needs_data
@pytest.mark.published
@pytest.mark.parametrize(("sticky", "published"), [(True, (8.509, 152.97)), (False, (9.115, 86.77))])
def test_random_comes_near_the_published_figures(sticky: bool, published: tuple[float, float]) -> None:
    # As in the artifact, the generator has drawn a run for each class of each GPU before it draws the first berth;
    # from there on the draws part.
    assert DATA is not None
    draw = Random(42)
    for _ in range(64):
        for runs in (1404, 1096, 1096, 880):
            draw.choice(range(runs))
    policy = in_rounds(RandomPolicy(draw=draw), sticky=sticky)

    figures = run(sia_trace(DATA, 1), sia_fleet(DATA), policy, SIA).figures()

    hours = (figures["avg_jct_s"] / 3600, figures["makespan_s"] / 3600)  # type: ignore[operator]
    assert hours == pytest.approx(published, rel=0.03)


@needs_data
@pytest.mark.published
def test_the_bins_of_the_published_gpus() -> None:
    assert DATA is not None
    on = sia_fleet(DATA)
    found = {
        name: [
            (round(value, 3), int(np.bitwise_count(masks).sum()))
            for value, masks in zip(found.values, found.exactly, strict=True)
        ]
        for name in on.scores
        for found in [bins.bins_of(on, on.scores.get(name))]
    }

    assert found == {
        "compute": [(0.913, 51), (1.0, 12), (2.595, 1)],
        "mixed": [(0.985, 44), (1.015, 20)],
        "memory": [(0.988, 31), (1.012, 33)],
        "D": [(0.985, 7), (1.015, 57)],
    }


@needs_data
@pytest.mark.published
def test_pal_gains_over_packed_what_is_published_for_these_traces() -> None:
    assert DATA is not None
    on, gains = sia_fleet(DATA), []
    for trace in (1, 3, 4, 7):
        pal, packed = (
            float(str(run(sia_trace(DATA, trace), on, registry.create(name), SIA).figures()["avg_jct_s"]))
            for name in ("pal", "packed")
        )
        gains.append(1 - pal / packed)

    # 16, 50, 11 and 5 % fewer hours: from the table of averages above.
    assert gains == pytest.approx([0.163, 0.504, 0.113, 0.054], abs=0.002)
