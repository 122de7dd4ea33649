# SPDX-License-Identifier: Apache-2.0
"""The cost of a berth."""

import math

import pytest

from policy.cluster.cost import NEIGHBOURS, CostModel, one_factor, pal_locality, read_costs
from policy.formats.errors import ConfigError


def test_a_row_of_the_model_comes_before_the_class_and_that_before_all_others() -> None:
    costs = CostModel({"*": one_factor(leaf=1.5), "memory": one_factor(leaf=1.2), "bert": one_factor(leaf=1.1)})

    assert costs.locality("bert", "memory", "leaf", gpus=16) == 1.1
    assert costs.locality("gpt", "memory", "leaf", gpus=16) == 1.2
    assert costs.locality("gpt", "compute", "leaf", gpus=16) == 1.5


def test_a_model_without_a_row_for_a_level_falls_back() -> None:
    costs = CostModel({"*": one_factor(leaf=1.5, any=1.9), "bert": one_factor(leaf=1.1)})

    assert costs.locality("bert", "compute", "any", gpus=16) == 1.9


def test_the_widest_row_that_the_job_reaches_counts() -> None:
    costs = CostModel({"*": {"leaf": {2: 1.0, 8: 1.1, 16: 1.25}}})

    assert [costs.locality("", "", "leaf", gpus) for gpus in (4, 8, 12, 16, 64)] == [1.0, 1.1, 1.1, 1.25, 1.25]


def test_within_a_node_nothing_is_lost_unless_a_table_says_so() -> None:
    assert CostModel().locality("gpt", "compute", "node", gpus=8) == 1.0
    assert CostModel(pal_locality(2.0)).locality("gpt", "compute", "node", gpus=8) == 1.0


def test_a_wrong_level_is_named_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="there is no level laef; did you mean leaf"):
        CostModel({"*": one_factor(laef=1.3)})


@pytest.mark.parametrize("factor", [0.8, 0.999, 100.0, math.inf, math.nan])
def test_a_factor_that_makes_jobs_faster_or_a_hundred_times_slower_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="factors lie in 1 to 100"):
        CostModel({"*": one_factor(leaf=factor)})


@pytest.mark.parametrize("factor", [1.0, 99.9])
def test_any_factor_between_is_taken(factor: float) -> None:
    assert CostModel({"*": one_factor(leaf=factor)}).locality("m", "c", "leaf", gpus=2) == factor


def test_widths_count_from_one() -> None:
    assert CostModel({"*": {"leaf": {1: 1.3}}}).locality("m", "c", "leaf", gpus=1) == 1.3
    with pytest.raises(ConfigError, match="widths count from 1"):
        CostModel({"*": {"leaf": {0: 1.3, 2: 1.3}}})


def test_a_job_below_the_narrowest_width_of_its_row_loses_nothing() -> None:
    costs = CostModel({"*": {"leaf": {4: 1.3}}})

    assert [costs.locality("m", "c", "leaf", gpus) for gpus in (3, 4)] == [1.0, 1.3]


@pytest.mark.parametrize(
    ("model", "gpus", "leaf", "pod", "anywhere"),
    [
        ("", 1, 1.0, 1.0, 1.0),
        ("", 2, 1.17, 1.3, 1.7),
        ("resnet50", 2, 1.0, 1.0, 1.17),
        ("resnet50", 15, 1.0, 1.0, 1.17),
        ("resnet50", 16, 1.16, 1.16, 1.3),
        ("PointNet", 7, 1.0, 1.0, 1.0),
        ("PointNet", 8, 1.1, 1.1, 1.1),
        ("PointNet", 12, 1.2, 1.2, 1.2),
        ("PointNet", 15, 1.2, 1.2, 1.2),
        ("PointNet", 16, 1.25, 1.25, 1.25),
    ],
)
def test_where_a_site_says_nothing_published_measurements_count(
    model: str, gpus: int, leaf: float, pod: float, anywhere: float
) -> None:
    """Philly's table 4, and what PAL's artifact measured of single models."""
    costs = CostModel()

    assert [costs.locality(model, "", level, gpus) for level in ("leaf", "pod", "any")] == [leaf, pod, anywhere]


def test_pals_penalty_is_the_same_for_any_two_nodes() -> None:
    costs = CostModel(pal_locality())

    assert [costs.locality("", "", level, 2) for level in ("node", "leaf", "pod", "any")] == [1.0, 1.7, 1.7, 1.7]


@pytest.mark.parametrize(
    ("model", "levels", "factors"),
    [
        ("gpt", ("leaf",), {2: 1.17, 64: 1.17}),
        ("gpt", ("pod",), {2: 1.3, 64: 1.3}),
        ("gpt", ("any",), {2: 1.7, 64: 1.7}),
        ("resnet50", ("leaf", "pod"), {2: 1.0, 15: 1.0, 16: 1.16}),
        ("resnet50", ("any",), {2: 1.17, 15: 1.17, 16: 1.3}),
        ("PointNet", ("leaf", "pod", "any"), {7: 1.0, 8: 1.1, 11: 1.1, 12: 1.2, 15: 1.2, 16: 1.25}),
    ],
)
def test_a_site_that_says_nothing_has_what_docs_placement_says(
    model: str, levels: tuple[str, ...], factors: dict[int, float]
) -> None:
    for level in levels:
        assert {gpus: CostModel().locality(model, "compute", level, gpus) for gpus in factors} == factors


HEADER = "name,level,width,factor"


def test_a_sites_rows_stand_before_the_published_ones() -> None:
    costs = CostModel.of_site([HEADER, "*,leaf,2,1.05", "*,neighbours,1,1.2", "memory,any,2,1.4"])

    assert costs.locality("", "compute", "leaf", 2) == 1.05
    assert costs.locality("", "compute", "pod", 2) == 1.3
    assert costs.locality("", "memory", "any", 2) == 1.4
    assert costs.locality("", "compute", NEIGHBOURS, 1) == 1.2
    assert costs.neighbours_count
    assert not CostModel.of_site([]).neighbours_count


@pytest.mark.parametrize("row", ["*,leaf,2", "*,leaf,two,1.2", "*,leaf,2,far", "*,leaf,2.5,1.2"])
def test_a_row_that_cannot_be_read_is_named(row: str) -> None:
    with pytest.raises(ConfigError, match="costs, line 3: a row has name, level, width"):
        read_costs([HEADER, "*,pod,2,1.3", row], "costs")


def test_a_table_without_its_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="costs, line 2: a row has name"):
        read_costs(["level,factor", "leaf,1.3"], "costs")


@pytest.mark.parametrize(("rows", "communication"), [([], 0.1), (["*,links,2,1.0"], 0.0), (["*,links,2,1.3"], 0.3)])
def test_links_half_as_wide_cost_what_the_table_says(rows: list[str], communication: float) -> None:
    costs = CostModel.of_site([HEADER, *rows])

    assert costs.links(best=100.0, cut=50.0) == pytest.approx(1.0 + communication)


@pytest.mark.parametrize("row", ["*,links,2,0.9", "*,links,2,2.5", "vision,links,2,1.1"])
def test_links_that_cost_too_much_or_of_one_name_alone_are_refused(row: str) -> None:
    with pytest.raises(ConfigError, match="links"):
        CostModel.of_site([HEADER, row])
