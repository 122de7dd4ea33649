# SPDX-License-Identifier: Apache-2.0
"""Who is on a shared GPU, and what has to be done about those who should not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.node.devices import GpuProcess
from prolog_epilog.tenants import audit
from prolog_epilog.tenants.audit import ORDER, AuditAction, Judge
from prolog_epilog.tenants.state import SetState, Tenant
from tests.examples import examples

BOOKS = SetState(
    boot="b",
    uuids=("GPU-1",),
    modes=(0,),
    method="ceiling",
    multi_user=False,
    tenants=(Tenant(7, 1000, 30, 4096), Tenant(8, 1000, 50)),
)
JOBS = {70: 7, 71: 7, 80: 8, 90: 9}
"""Jobs of processes."""


def look(*running: GpuProcess, books: SetState = BOOKS) -> list[tuple[int | None, str, tuple[int, ...]]]:
    def processes(uuid: str) -> Sequence[GpuProcess]:
        assert uuid == "GPU-1"
        return running

    return [(one.job, one.kind, one.pids) for one in audit.look([books], processes, JOBS.get, lambda _: {10, 11})]


def test_all_is_well() -> None:
    assert (
        look(
            GpuProcess(10, "compute", 30),
            GpuProcess(11, "compute", 30),
            GpuProcess(70, "mps", 3000),
            GpuProcess(70, "compute", 3000),
            GpuProcess(71, "mps", 1200),
            GpuProcess(80, "mps", 60_000),
            GpuProcess(99, "graphics", 10),
        )
        == []
    )


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        (GpuProcess(90, "mps", 100), (9, "foreign", (90,))),
        (GpuProcess(99, "compute", 100), (None, "foreign", (99,))),
        (GpuProcess(70, "compute", 100), (7, "outside", (70,))),
        (GpuProcess(70, "mps", 4096 + audit.SLACK_MIB + 1), (7, "memory", (70,))),
        (GpuProcess(70, "graphics", 100), (7, "outside", (70,))),
        (GpuProcess(90, "graphics", 100), (9, "foreign", (90,))),
    ],
)
def test_each_excess_is_seen(running: GpuProcess, expected: tuple[int | None, str, tuple[int, ...]]) -> None:
    assert look(running) == [expected]


def test_memory_is_that_of_all_processes_of_the_job() -> None:
    assert look(GpuProcess(70, "mps", 3000), GpuProcess(71, "mps", 3000)) == [(7, "memory", (70, 71))]
    assert look(GpuProcess(70, "mps", None), GpuProcess(71, "mps", 3000)) == []


def test_what_a_job_draws_counts_as_what_it_computes() -> None:
    assert look(GpuProcess(70, "graphics", 9000)) == [(7, "outside", (70,)), (7, "memory", (70,))]
    assert look(GpuProcess(70, "mps", 3000), GpuProcess(71, "graphics", 3000)) == [
        (7, "outside", (71,)),
        (7, "memory", (70, 71)),
    ]
    # A process that does both is listed for each, and of one of them the driver may not tell the memory.
    assert look(GpuProcess(70, "mps", 9000), GpuProcess(70, "graphics", None)) == [
        (7, "outside", (70,)),
        (7, "memory", (70,)),
    ]


def test_an_x_server_is_nobodys_harm() -> None:
    assert look(GpuProcess(99, "graphics", 9000)) == []
    assert look(GpuProcess(99, "graphics", 9000), GpuProcess(99, "compute", 10)) == [(None, "foreign", (99,))]


def test_by_time_nobody_goes_through_mps() -> None:
    books = replace(BOOKS, method="time")

    assert look(GpuProcess(70, "compute", 100), GpuProcess(71, "graphics", 100), books=books) == []
    assert look(GpuProcess(90, "compute", 100), books=books) == [(9, "foreign", (90,))]


def excess(job: int | None = 7) -> audit.Excess:
    return audit.Excess("GPU-1", job, "memory", (70,), "too much")


@pytest.mark.parametrize(
    ("hardest", "expected"),
    [
        ("warn", {1: ["warn"], 61: ["warn"]}),
        ("terminate", {1: ["warn"], 3: ["terminate"], 61: ["warn"], 63: ["terminate"]}),
        ("requeue", {1: ["warn"], 3: ["terminate"], 10: ["requeue"], 61: ["warn"], 63: ["terminate"]}),
    ],
)
def test_the_answer_gets_harder_the_longer_it_lasts(hardest: str, expected: dict[int, list[str]]) -> None:
    judge = Judge(hardest)

    answers = {second: [one.what for one in judge.answers([excess()])] for second in range(1, 65)}

    assert {second: what for second, what in answers.items() if what} == expected


def test_what_ended_is_forgotten() -> None:
    judge = Judge("terminate")
    for _ in range(2):
        judge.answers([excess()])
    for _ in range(60):
        judge.answers([])

    assert judge.lasted == {}
    assert judge.answers([excess()]) == [AuditAction("warn", excess())]
    assert judge.answers([excess()]) == []


def told(pattern: Iterable[bool], hardest: str = "requeue") -> list[str]:
    """Return what is answered to a job whose looks show an excess, or none."""
    judge = Judge(hardest)
    return [one.what for seen in pattern for one in judge.answers([excess()] if seen else [])]


def test_an_excess_of_400_seconds_in_600_is_answered_whatever_its_pauses() -> None:
    assert "requeue" in told([True, True, False] * 200)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=40, max_size=80))
def test_a_pause_makes_no_excess_unseen(turns: list[tuple[int, int]]) -> None:
    """Turns of looks with an excess and without: where it is half of the time, it is answered as one without pauses."""
    pattern = [seen for busy, quiet in turns for seen in [True] * busy + [False] * min(busy, quiet)]

    assert set(told(pattern)) == set(ORDER)
    assert set(told(pattern, "terminate")) == {"warn", "terminate"}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(20, 90), min_size=1, max_size=40))
def test_a_blink_now_and_then_is_only_told(pauses: list[int]) -> None:
    """A job that ends is still seen for a moment; the one after it may have the same number."""
    assert set(told(seen for quiet in pauses for seen in [True] + [False] * quiet)) == {"warn"}


def test_a_process_of_no_job_is_never_ended() -> None:
    judge = Judge("requeue")

    assert [one.what for _ in range(20) for one in judge.answers([excess(None)])] == ["warn"]
