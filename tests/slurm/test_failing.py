# SPDX-License-Identifier: Apache-2.0
"""The commonest failures, each a real one: the class that Berth gives it, and whether and where the job runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .failing import OWN_FAULTS, PLACES, breaking, memory_is_held, preemption, ran
from .harness import Slurm, until
from .test_planner import segment_of
from .test_retry import failure, given_up

BUILD = Path(__file__).resolve().parents[2] / "build"
NODE = "n4"
pytestmark = pytest.mark.hard
"""A minute, more beside others: `make test-hard`. test_retry.py has what every change should be tested with."""


@pytest.fixture(scope="module")
def told(slurm: Slurm) -> Iterator[list[dict[str, str]]]:
    """A row for each way to fail, kept under build/ for docs/results/tables."""
    rows: list[dict[str, str]] = []
    yield rows
    BUILD.mkdir(exist_ok=True)
    (BUILD / f"failing-{slurm.name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def test_a_fault_of_the_program_is_named_and_never_run_again(slurm: Slurm, told: list[dict[str, str]]) -> None:
    with memory_is_held(slurm, NODE):
        options = ("--gpus=1", "-n1", "--mem=60", "--retry=auto", "-w", NODE)
        jobs = {name: slurm.submit(*options, body=body) for name, (_, body) in OWN_FAULTS.items()}
        found = {name: failure(slurm, job) for name, job in jobs.items()}
        assert found == {name: name for name in OWN_FAULTS}
        why = {name: until("the decision", lambda job=job: given_up(slurm, job)) for name, job in jobs.items()}  # type: ignore[misc]

    for name, job in jobs.items():
        record = slurm.show(job)
        told.append(
            {"how": OWN_FAULTS[name][0], "class": name, "again": "no", "ended": record["JobState"], "why": why[name]}
        )
        assert "which another try does not change" in why[name]
        assert record["Restarts"] == "0"
        assert record["JobState"] == ("OUT_OF_MEMORY" if name == "cpu_out_of_memory" else "FAILED")


def test_a_fault_of_the_place_is_named_and_passes_elsewhere(slurm: Slurm, told: list[dict[str, str]]) -> None:
    with preemption(slurm):
        jobs = {
            how: slurm.submit(
                "--gpus=8", "-n1", "--mem=10", "--retry=auto", "--open-mode=append", *one.options, body=one.body
            )
            for how, one in PLACES.items()
        }
        for job in jobs.values():
            slurm.wait_state(job, {"RUNNING"})
        with breaking(slurm, jobs) as where:
            seen = {how: put_back(slurm, job) for how, job in jobs.items()}
            assert {how: values["fail"] for how, values in seen.items()} == {
                how: one.failure for how, one in PLACES.items()
            }
            for how, job in jobs.items():
                let_run_again(slurm, job, not_on=where[how].name if PLACES[how].by == "berthd" else "")
            for how, job in jobs.items():
                assert slurm.wait_state(job, {"COMPLETED", "FAILED"}, 120) == "COMPLETED", how
            nodes = {how: ran(slurm, job) for how, job in jobs.items()}

    for how, one in PLACES.items():
        values = seen[how]
        why = values.get("retry_text") or values["fail_text"]
        told.append({"how": how, "class": one.failure, "again": f"by {one.by}", "ended": "COMPLETED", "why": why})
        assert len(nodes[how]) == 2, how
        assert ("again" in values) == (one.by == "berthd"), how
        if one.by == "berthd":
            assert values["avoids"].startswith(f"{where[how].name}@")
        if one.failure != "job_preempted":
            assert nodes[how][1] != nodes[how][0], how


def put_back(slurm: Slurm, job: int) -> dict[str, str]:
    """Waits until a job is requeued with a reason; returns its segment."""

    def noted() -> dict[str, str] | None:
        return values if slurm.state(job) == "PENDING" and "fail" in (values := segment_of(slurm, job)) else None

    return until(f"job {job} to be put back", noted, 120)


def let_run_again(slurm: Slurm, job: int, *, not_on: str) -> None:
    """Starts the job at once, not after two minutes, when berthd has found another place for it."""

    def runs() -> bool:
        if slurm.state(job) == "PENDING" and segment_of(slurm, job).get("nodes") not in {None, not_on}:
            slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root", check=False)
        return slurm.state(job) != "PENDING"

    until(f"job {job} to run again", runs, 120, every=1.0)
