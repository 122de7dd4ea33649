# SPDX-License-Identifier: Apache-2.0
"""Finds what made a job slow, on jobs whose truth is known."""

import numpy as np
import pytest

from policy.formats.arrays import Floats
from policy.history.slowness.job import Slowness, analyse
from policy.history.slowness.sources import StepRank, StepTimes
from tests.bench.stragglers import KINDS, cases, figures


def times_of(own: Floats, nodes: int = 2, **more: object) -> StepTimes:
    """Returns step times of ranks spread over nodes."""
    rows, ranks = own.shape
    each = ranks // nodes
    members = tuple(StepRank(rank, f"n{rank // each}", rank % each) for rank in range(ranks))
    values = {"ops": {"step": own}, "steps": np.ones(rows), **more}
    return StepTimes("ops", members, **values)  # type: ignore[arg-type]


def noisy(rows: int = 200, ranks: int = 8, level: float = 100.0) -> Floats:
    return level * np.exp(np.random.default_rng(3).normal(0.0, 0.005, (rows, ranks)))


def only(found: Slowness) -> tuple[str, str, list[int | None]]:
    assert len(found.parts) == 1, [part.text for part in found.parts]
    part = found.parts[0]
    return part.cause, part.blame, [rank.rank for rank in part.ranks]


def test_an_even_job_has_no_cause() -> None:
    found = analyse(times_of(noisy()))

    assert (found.cause, found.parts) == ("even", ())
    assert found.slowdown < 1.02


def test_a_rank_that_needs_a_quarter_more_costs_a_fifth_of_the_time() -> None:
    own = noisy()
    own[:, 5] *= 1.25

    found = analyse(times_of(own))

    assert only(found) == ("gpu", "unknown", [5])
    assert found.parts[0].share == pytest.approx(0.2, abs=0.01)
    assert found.parts[0].factor == pytest.approx(1.25, abs=0.01)


@pytest.mark.parametrize(("score", "blame"), [(1.24, "hardware"), (1.001, "software")])
def test_what_is_known_of_the_gpu_tells_hardware_from_a_rank_with_more_to_do(score: float, blame: str) -> None:
    own = noisy()
    own[:, 5] *= 1.25

    assert only(analyse(times_of(own), {("n1", 1): score})) == ("gpu", blame, [5])


def test_a_rank_that_is_slow_for_a_while_is_hardware_and_the_while_is_told() -> None:
    own = noisy()
    own[80:160, 2] *= 1.3

    found = analyse(times_of(own))

    assert only(found) == ("gpu", "hardware", [2])
    begin, end = found.parts[0].during
    assert begin == pytest.approx(0.4, abs=0.07)
    assert end == pytest.approx(0.8, abs=0.07)


def test_two_slow_ranks_do_not_hide_each_other() -> None:
    own = noisy(ranks=16)
    own[:, [3, 9]] *= 1.3

    found = analyse(times_of(own))

    assert {rank.rank for part in found.parts for rank in part.ranks} == {3, 9}
    assert found.lost == pytest.approx(0.23, abs=0.02)


def test_all_ranks_of_one_node_are_one_cause() -> None:
    own = noisy()
    own[:, 4:] *= 1.2

    assert only(analyse(times_of(own))) == ("node", "hardware", [4, 5, 6, 7])


@pytest.mark.parametrize("micro", [0, 8])
def test_a_stage_with_more_work_is_the_programs(micro: int) -> None:
    own = noisy()
    own[:, 6:] *= 1.4
    ranks = tuple(StepRank(rank, "n0", rank, stage=rank // 2) for rank in range(8))
    times = StepTimes("ops", ranks, {"step": own}, np.ones(200), micro)

    found = analyse(times)

    assert only(found) == ("stage", "software", [6, 7])
    assert "the last one" in found.parts[0].text


def test_lengths_of_sequences_are_told_by_forward_and_backward_times() -> None:
    lengths = np.exp(np.random.default_rng(4).normal(0.0, 0.2, (200, 8)))
    ops = {"forward": noisy(level=30.0) * lengths, "backward": noisy(level=60.0) * lengths}

    found = analyse(times_of(ops["forward"], ops=ops))

    assert only(found) == ("data", "software", [])
    assert "lengths of sequences" in found.parts[0].text


def test_rare_pauses_of_changing_ranks_are_pauses() -> None:
    own, rng = noisy(), np.random.default_rng(5)
    for row in range(0, 200, 5):
        own[row, rng.integers(8)] += 150.0

    found = analyse(times_of(own))

    assert found.cause == "pauses"
    assert found.parts[0].share == pytest.approx(0.23, abs=0.03)


def test_steps_that_are_long_on_all_ranks_are_the_programs_and_the_operation_is_named() -> None:
    waits = np.full((200, 8), 2.0)
    waits[::10] = 300.0

    found = analyse(times_of(noisy(), ops={"compute": noisy(), "input": waits}))

    assert only(found) == ("stalls", "software", [])
    assert "input" in found.parts[0].text


def test_one_rank_alone_can_only_stall() -> None:
    own = noisy(ranks=1)
    own[::10] *= 4.0

    assert analyse(times_of(own, nodes=1)).cause == "stalls"


def test_costs_of_causes_add_up_to_what_was_lost() -> None:
    own = noisy()
    own[:, 1] *= 1.3
    own[::10] *= 3.0

    found = analyse(times_of(own))

    assert {part.cause for part in found.parts} == {"gpu", "stalls"}
    assert sum(part.share for part in found.parts) == pytest.approx(found.lost)


@pytest.mark.slow
def test_over_drawn_jobs_the_truth_is_named() -> None:
    made, _ = figures(cases(7, 12), lambda case: analyse(case.times, case.known))

    values = {figure.name: figure.value for figure in made}
    assert min(value for name, value in values.items() if name != "false_alarms") >= 0.75
    assert np.mean([values[f"cause_{kind}"] for kind in KINDS]) >= 0.95
    assert values["false_alarms"] <= 0.1


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 8), (2, 3), (7, 2), (40, 5)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_whatever_the_times_are_costs_are_parts_of_the_whole(shape: tuple[int, int], scale: float) -> None:
    own = np.exp(np.random.default_rng(6).normal(0.0, scale, shape))
    own[0, 0] = 0.0

    found = analyse(times_of(own, nodes=1))

    assert found.slowdown >= 1.0 - 1e-9
    assert all(0.0 < part.share <= 1.0 for part in found.parts)
    assert sum(part.share for part in found.parts) <= found.lost + 1e-9 <= 1.0
