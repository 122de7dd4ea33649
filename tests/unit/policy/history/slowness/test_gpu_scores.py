# SPDX-License-Identifier: Apache-2.0
"""Scores between calibrations: what step times and clocks change, and what they must not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.history.slowness.gpus import ScoreNow, refresh
from tests.bench.scores_steps import Weeks, living
from tests.examples import examples
from topology.calibrate.runs import seconds_of
from topology.calibrate.steps import FORMAT, ClockReport, JobReport, Rank, Report, decode, encode
from topology.errors import TopologyFileError
from topology.scores import Score

AT = "2026-11-20T10:00:00Z"
NOW = seconds_of("2026-11-21T10:00:00Z")


def scores(nodes: int = 4, gpus: int = 4, error: float = 0.01) -> list[Score]:
    return [
        Score(f"n{node}", gpu, f"GPU-n{node}-{gpu}", "compute", 1.0, 3, 0.01, AT, error)
        for node in range(nodes)
        for gpu in range(gpus)
    ]


def run(number: int, some: Sequence[Score], slow: dict[tuple[str, int], float], app: str = "bert") -> JobReport:
    """A job on these GPUs; noise as small as a percent."""
    draw = random.Random(f"{app}/{number}")
    ranks = tuple(
        Rank(
            one.node,
            one.position,
            one.uuid,
            150.0 * slow.get((one.node, one.position), 1.0) * math.exp(draw.gauss(0.0, 0.01)),
            500,
        )
        for one in some
    )
    return JobReport(str(number), app, "compute", AT, ranks)


def by_place(found: Sequence[ScoreNow]) -> dict[tuple[str, int], ScoreNow]:
    return {(one.score.node, one.score.position): one for one in found}


def test_a_gpu_that_became_slow_is_found_by_its_jobs_and_its_score_follows() -> None:
    known = scores()
    found = by_place(refresh(known, of_users(1, 2, 3, runs=3, slow=1.2, some=known), NOW))

    slow = found["n1", 2]
    assert slow.told == "changed"
    assert slow.score.score == pytest.approx(1.2, abs=0.03)
    assert (slow.before, slow.reports) == (1.0, 9)
    others = [one for place, one in found.items() if place != ("n1", 2)]
    assert all(not one.told and abs(one.score.score - 1.0) < 0.015 for one in others)


def of_users(*users: int, runs: int, slow: float, some: Sequence[Score]) -> list[Report]:
    """Runs of these users, one after the other, in which n1's third GPU is slow."""
    return [run(n, some, {("n1", 2): slow}, f"{user}-7f") for user in users for n in range(runs)]


@given(
    st.integers(1, 40),
    st.floats(0.01, 100.0),
    st.integers(0, 2),
    st.booleans(),
    st.floats(0.005, 0.05),
)
@settings(max_examples=examples(40), deadline=None)
def test_one_users_runs_and_clocks_move_a_score_by_three_percent_however_many_and_false_they_are(
    runs: int, lie: float, honest: int, by_clock: bool, error: float
) -> None:
    known = scores(error=error)
    said = of_users(1004, runs=runs, slow=lie, some=known)
    if by_clock:
        said += [replace(one, app="1004-7f") for one in clocks(known, {("n1", 2): lie})] * runs
    for user in range(honest):
        said += of_users(2000 + user, runs=3, slow=1.0, some=known)

    # Honest runs differ by a percent.
    most = 0.031 if honest < 2 else 0.05
    for one in refresh(known, said, NOW):
        assert abs(math.log(one.score.score)) <= most, f"{one.score.node} GPU {one.score.position}: {one.score.score}"


@given(st.integers(1, 40), st.sampled_from([0.02, 0.7, 1.0, 1.5, 50.0]))
@settings(max_examples=examples(30), deadline=None)
def test_one_false_user_among_three_does_not_hide_that_a_gpu_became_slow(runs: int, lie: float) -> None:
    known = scores()
    said = of_users(1004, runs=runs, slow=lie, some=known) + of_users(1, 2, 3, runs=3, slow=1.2, some=known)

    assert by_place(refresh(known, said, NOW))["n1", 2].score.score == pytest.approx(1.2, abs=0.06)


def test_two_slow_runs_are_no_change() -> None:
    known = scores()
    found = by_place(refresh(known, [run(n, known, {("n1", 2): 1.2}) for n in range(2)], NOW))

    assert not found["n1", 2].told
    assert found["n1", 2].score.score < 1.05


def test_a_node_of_which_all_gpus_became_slow_has_a_late_host_and_keeps_its_scores() -> None:
    known = scores()
    slow = {("n1", gpu): 1.3 for gpu in range(4)}
    found = by_place(refresh(known, [run(n, known, slow) for n in range(10)], NOW))

    assert {one.told for place, one in found.items() if place[0] == "n1"} == {"host"}
    assert all(one.score.score == 1.0 for place, one in found.items() if place[0] == "n1")
    assert not any(one.told for place, one in found.items() if place[0] != "n1")


def clocks(known: Sequence[Score], slow: dict[tuple[str, int], float]) -> list[ClockReport]:
    return [
        ClockReport(
            one.node, one.position, one.uuid, AT, "V100", 300.0, 1500.0 / slow.get((one.node, one.position), 1.0), 60.0
        )
        for one in known
    ]


def test_the_clock_tells_a_slow_chip_from_a_late_host() -> None:
    known = scores()
    jobs = of_users(1, 2, 3, runs=3, slow=1.2, some=known)

    chip = by_place(refresh(known, [*jobs, *clocks(known, {("n1", 2): 1.2})], NOW))["n1", 2]
    host = by_place(refresh(known, [*jobs, *clocks(known, {})], NOW))["n1", 2]
    assert (chip.told, chip.clocks) == ("changed", 1)
    assert chip.score.score == pytest.approx(1.2, abs=0.03)
    assert host.told == "host"
    assert host.score.score == pytest.approx(1.0, abs=0.01)


def test_clocks_alone_move_a_score_that_little_is_known_of_and_say_nothing_of_memory() -> None:
    known = scores(error=0.03)
    memory = [replace(one, app_class="memory") for one in known]
    seen = [replace(one, app=f"{user}-7f") for user in range(3) for one in clocks(known, {("n0", 0): 1.1})]
    found = refresh([*known, *memory], seen, NOW)

    assert 1.07 < found[0].score.score < 1.1
    assert found[0].score.error < 0.015
    assert [one.score for one in found[len(known) :]] == list(memory)


@pytest.mark.parametrize(("gpus", "counts"), [(4, False), (7, False), (8, True)])
def test_few_clocks_of_a_model_have_no_peers_to_be_compared_with(gpus: int, *, counts: bool) -> None:
    known = scores(nodes=1, gpus=gpus, error=0.03)
    seen = [replace(one, app=f"{user}-7f") for user in range(3) for one in clocks(known, {("n0", 0): 1.2})]

    assert ([one.score for one in refresh(known, seen, NOW)] != list(known)) is counts


@pytest.mark.parametrize(("at", "counts"), [("2026-10-22T10:00:00Z", True), ("2026-10-22T09:59:59Z", False)])
def test_a_report_counts_for_thirty_days(at: str, *, counts: bool) -> None:
    known = [replace(one, at="2026-09-01T10:00:00Z") for one in scores()]
    found = by_place(refresh(known, [replace(run(n, known, {("n1", 2): 1.2}), at=at) for n in range(8)], NOW))

    assert found["n1", 2].reports == (8 if counts else 0)


def test_runs_of_one_application_are_compared_over_nodes_that_never_ran_it_together() -> None:
    known = scores(error=0.05)
    nodes = [[one for one in known if one.node == f"n{number}"] for number in range(4)]
    jobs = [
        run(10 * number + n, nodes[number], {("n1", gpu): 1.08 for gpu in range(4)})
        for number in range(4)
        for n in range(30)
    ]
    found = by_place(refresh(known, jobs, NOW))

    others = [one.score.score for place, one in found.items() if place[0] != "n1"]
    assert all(found["n1", gpu].score.score > max(others) + 0.03 for gpu in range(4))


def test_a_single_run_on_a_single_gpu_says_nothing() -> None:
    known = scores()

    (only,) = refresh(known[:1], [run(1, known[:1], {})], NOW)
    assert (only.score, only.reports) == (known[0], 0)


def test_old_reports_unknown_gpus_and_other_classes_are_left_out() -> None:
    known = scores()
    old = [replace(run(n, known, {("n1", 2): 1.2}), at="2026-09-01T10:00:00Z") for n in range(8)]
    other = [replace(run(n, known, {("n1", 2): 1.2}), app_class="memory") for n in range(8)]
    strange = [run(n, [replace(one, uuid="GPU-new") for one in known], {}) for n in range(8)]

    assert [one.score for one in refresh(known, [*old, *other, *strange], NOW)] == list(known)


def test_what_was_before_a_calibration_is_forgotten_because_it_may_have_been_repaired() -> None:
    known = scores()
    repaired = [replace(one, at="2026-11-20T12:00:00Z") if one.uuid == "GPU-n1-2" else one for one in known]
    found = by_place(refresh(repaired, [run(n, known, {("n1", 2): 1.2}) for n in range(8)], NOW))

    assert (found["n1", 2].score, found["n1", 2].reports) == (
        next(one for one in repaired if one.uuid == "GPU-n1-2"),
        0,
    )
    assert found["n1", 1].reports == 8


def test_errors_shrink_and_never_grow_where_nothing_changed() -> None:
    known = scores(error=0.03)
    found = refresh(known, [run(n, known, {}, app=f"app{n % 3}") for n in range(20)], NOW)

    assert all(one.score.error < 0.03 for one in found)


@pytest.mark.slow
def test_on_simulated_fleets_the_error_falls_and_no_late_host_is_called_a_slow_chip() -> None:
    found = living(range(1), Weeks(jobs=400))

    assert found.error < 0.6 * found.error_before
    assert found.changed_error < 0.5 * found.changed_error_before
    assert found.calls.wrongly == 0
    assert found.blamed == 0


# The format


def lines(*reports: Report) -> list[str]:
    return [json.dumps({"format": FORMAT}), *map(encode, reports)]


def test_what_is_written_is_read() -> None:
    known = scores(1, 2)
    some: tuple[Report, ...] = (run(1, known, {}), *clocks(known, {}))

    assert decode(lines(*some)) == some


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"kind":"job","job":"1","app":"a","app_class":"compute","at":"now","ranks":[]}', "a job has ranks"),
        ('{"kind":"guess"}', '"kind" is job or clock'),
        ("[1]", '"kind" is job or clock'),
        ("{", "it is not JSON"),
        ('{"kind":"clock","node":"n1"}', "lacks some of app, at, model, position"),
        ('{"kind":"clock","node":"n1","colour":1}', "unknown key"),
        ('{"kind":"clock","node":"n1","position":true}', "does not fit"),
        (encode(clocks(scores(1, 1), {})[0]).replace("1500.0", "0"), "all above 0"),
        (encode(clocks(scores(1, 1), {})[0]).replace("1500.0", "NaN"), "does not fit"),
        (encode(clocks(scores(1, 1), {})[0]).replace(AT, "yesterday"), "is no time"),
    ],
)
def test_a_wrong_line_is_told_with_its_place(line: str, said: str) -> None:
    with pytest.raises(TopologyFileError, match=said) as told:
        decode([*lines(), line], "steps")
    assert "steps, line 2" in str(told.value) or said == "is no time"


def test_a_file_without_its_first_line_is_refused() -> None:
    for text in ([], lines(*clocks(scores(1, 1), {}))[1:]):
        with pytest.raises(TopologyFileError, match=r"line 1(: it)? should be"):
            decode(text)
