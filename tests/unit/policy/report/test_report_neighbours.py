# SPDX-License-Identifier: Apache-2.0
"""What neighbours cost, by the hours of jobs that were alone and beside others."""

from __future__ import annotations

from datetime import UTC, datetime
from time import process_time

from policy.report.rows import COLUMNS, read
from policy.report.site import Site
from policy.report.tally import Period, Tally
from policy.report.text import text
from policy.retry.rules import shipped_rules
from tests.unit.policy.report.collected import line
from topology.calibrate.steps import JobReport, Rank

HOUR = 3_600
HEADER = "|".join(COLUMNS)


def hour(job: str, number: int, ms: float, *nodes: str) -> JobReport:
    """What a job told at the end of an hour."""
    at = datetime.fromtimestamp(number * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return JobReport(job, "train", "compute", at, tuple(Rank(node, 0, "GPU-a", ms, 100) for node in nodes))


def found(reports: list[JobReport], *lines: str) -> dict[str, dict[str, float]]:
    tally = Tally(Site({"n1": 8, "n2": 8}), shipped_rules(), reports)
    tally.add(read([HEADER, *lines]), Period(0.0, 40.0 * HOUR), 40.0 * HOUR)
    figures = tally.figures(Period(0.0, 40.0 * HOUR))
    neighbours: dict[str, dict[str, float]] = figures["neighbours"]
    assert ("What neighbours on a node cost" in text(figures)) is bool(neighbours)
    return neighbours


TRAINS = line("7", HOUR, HOUR, 5 * HOUR, "n1", 2)
ALONE, BESIDE = hour("7", 2, 100.0, "n1"), hour("7", 4, 130.0, "n1")


def test_a_jobs_hours_beside_others_are_compared_with_its_hours_alone() -> None:
    other = line("8", HOUR, 3 * HOUR, 6 * HOUR, "n1", 1)

    assert found([ALONE, BESIDE], TRAINS, other) == {
        "*": {"jobs": 1, "factor": 1.3},
        "lab": {"jobs": 1, "factor": 1.3},
    }


def test_a_neighbour_that_runs_on_at_the_end_counts() -> None:
    other = line("8", HOUR, 3 * HOUR, 90 * HOUR, "n1", 1)

    assert found([ALONE, BESIDE], TRAINS, other)["*"] == {"jobs": 1, "factor": 1.3}


def test_hours_with_others_for_a_part_of_the_time_say_nothing() -> None:
    other = line("8", HOUR, 3 * HOUR + HOUR // 2, 6 * HOUR, "n1", 1)

    assert found([ALONE, BESIDE], TRAINS, other) == {}


def test_jobs_without_gpus_and_on_other_nodes_are_no_neighbours() -> None:
    others = line("8", HOUR, 3 * HOUR, 6 * HOUR, "n1", 0), line("9", HOUR, 3 * HOUR, 6 * HOUR, "n2", 1)

    assert found([ALONE, BESIDE], TRAINS, *others) == {}


def test_the_slowest_rank_and_the_fullest_node_count() -> None:
    wide = [hour("7", 2, 100.0, "n1", "n2"), hour("7", 4, 150.0, "n1", "n2")]
    job = line("7", HOUR, HOUR, 5 * HOUR, "n1,n2", 4)

    assert found(wide, job, line("8", HOUR, 3 * HOUR, 6 * HOUR, "n2", 1))["*"]["factor"] == 1.5


def test_a_run_before_a_requeue_counts_too() -> None:
    runs = line("8", HOUR, 3 * HOUR, 4 * HOUR, "n1", 1), line("8", HOUR, 20 * HOUR, 21 * HOUR, "n1", 1)

    assert found([ALONE, BESIDE], TRAINS, *runs)["*"] == {"jobs": 1, "factor": 1.3}


def test_a_node_with_many_hours_and_many_runs_is_counted_at_once() -> None:
    reports = [hour(str(number % 7), number, 100.0, "n1") for number in range(3_000)]
    runs = [
        line(str(100 + number), HOUR, number * HOUR // 4, (number + 2) * HOUR // 4, "n1", 1) for number in range(10_000)
    ]
    began = process_time()

    found(reports, *runs)

    # Half a second; each run for each hour would take half a minute.
    assert process_time() - began < 10.0
