# SPDX-License-Identifier: Apache-2.0
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from policy.slurm.by_library.libslurm import job_facts, node_facts
from policy.slurm.by_library.program import JobRecord, NodeRecord
from tests.bench.load import __main__ as bench
from tests.bench.load import locks
from tests.bench.load.slurm import PaperSlurm
from tests.bench.load.workload import Queue, Workload, WorkloadError, load

WORKLOADS = sorted(bench.WORKLOADS.glob("*.yaml"))
TINY = """
about: three nodes for a moment
seconds: 3
cluster: [{machine: hgx-h100, nodes: 3}]
sizes: [{gpus: 1}, {gpus: 8, nodes: 2, weight: 0.5}]
waiting: {jobs: 10, arrays: 1, tasks_each: 5}
ends_per_second: 5
arrivals_per_second: 5
bursts: {submissions: 8, clients: 4, every_s: 2}
thresholds: {rss_mb: 100000, burst_seen_s: 1000}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "one.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Workload:
    return load(written(tmp_path, TINY))


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_each_workload_of_the_repository_is_whole(path: Path) -> None:
    assert load(path).about


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seconds: 3\n", "seconds: 3\nsecond: 4\n", "the file has an unknown key 'second'; did you mean seconds?"),
        ("seconds: 3\n", "", "the file lacks the key 'seconds'"),
        ("tasks_each: 5", "tasks: 5", "waiting has an unknown key 'tasks'; did you mean tasks_each?"),
        ("{gpus: 1}", "{nodes: 1}", "sizes, entry 1, lacks the key 'gpus'"),
        ("hgx-h100", "hgx-h10", "there is no machine 'hgx-h10'; did you mean hgx-h100?"),
        ("nodes: 3}", "nodes: many}", "nodes has to be a whole number of 0 or more, not 'many'"),
        ("seconds: 3", "seconds: -3", "seconds has to be a number of 0 or more, not -3"),
        ("[{machine: hgx-h100, nodes: 3}]", "[]", "cluster has to be a list with one entry at least"),
        ("about: three", "about: [three", "cannot be read as YAML"),
    ],
)
def test_a_fault_of_a_workload_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = written(tmp_path, TINY.replace(old, new, 1))

    with pytest.raises(WorkloadError) as told:
        load(path)

    assert str(told.value).startswith(f"{path}: ")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def answered(slurm: PaperSlurm, command: str) -> list[list[object]]:
    *lines, last = slurm.answer(command)
    assert last == '["ok"]', last
    return [json.loads(line) for line in lines]


def jobs(records: Sequence[Sequence[object]]) -> list[JobRecord]:
    return [JobRecord(*record[1:]) for record in records if record[0] == "job"]  # type: ignore[arg-type]


def test_a_look_has_what_changed_since_the_last_one(tiny: Workload) -> None:
    slurm = PaperSlurm(tiny)
    first = answered(slurm, "read all")
    nodes = [node_facts(NodeRecord(*record[1:])) for record in first if record[0] == "node"]  # type: ignore[arg-type]
    assert [node.gpus for node in nodes] == [8, 8, 8]
    assert {job_facts(one).state for one in jobs(first)} == {"RUNNING", "PENDING", "ARRAY"}
    assert answered(slurm, "read") == []

    ended = slurm.end_one()
    assert ended is not None
    [record] = jobs(answered(slurm, "read"))
    assert (record.id, record.state, record.base) == (ended.id, "COMPLETING", "COMPLETED")
    slurm.epilog_ended(ended.id, ended.on[0])
    assert [one.state for one in jobs(answered(slurm, "read"))] == ["COMPLETED"]


def test_a_pin_that_is_written_lets_the_job_start_there_and_a_task_gets_a_record(tiny: Workload) -> None:
    slurm = PaperSlurm(replace(tiny, waiting=Queue(arrays=1, tasks_each=5)))
    while slurm.running:
        job = slurm.end_one()
        assert job is not None
        for name in job.on:
            slurm.epilog_ended(job.id, name)
    array = next(job for job in slurm.jobs.values() if job.tasks)
    task = array.tasks[-1]

    answered(slurm, f"update {array.id}_{task} req_nodes=n2 tres_per_node=gres/gpu:g7:1,gres/seat:g7:1")
    slurm.schedule()

    [one] = [job for job in slurm.jobs.values() if (job.array, job.task) == (array.id, task)]
    assert (one.state, one.on, one.mask) == ("RUNNING", ("n2",), 1 << 7)
    [refusal] = slurm.answer(f"update {one.id} req_nodes=n1")
    assert "no longer pending" in refusal


def test_what_begins_is_told_so_that_its_like_can_come(tiny: Workload) -> None:
    slurm = PaperSlurm(replace(tiny, waiting=Queue(arrays=1, tasks_each=2)))
    for name in ("n0", "n1"):
        texts = {"required": name, "tres_per_node": "gres/gpu:g0:1,gres/seat:g0:1"}
        slurm.submitted(1_000, 1, 1, texts, tasks=2 if name == "n1" else 0)
    array = max(job.id for job in slurm.jobs.values() if job.tasks)
    while slurm.running:
        job = slurm.end_one()
        assert job is not None
        for name in job.on:
            slurm.epilog_ended(job.id, name)
        slurm.schedule()

    assert slurm.started.count((1, 1, 0)) == 1
    assert (1, 1, 2) in slurm.started
    assert [slurm.jobs[array].tasks, slurm.jobs[array].task] == [[], 1]


def test_what_slurmctld_would_hold_is_told_by_records_and_calls() -> None:
    def held(*looks: tuple[float, int, int, int]) -> float:
        return locks.of_looks(locks.SlurmLook(*one) for one in looks)

    assert held() == locks.of_calls(0, 0) == 0
    assert held((0, 1_000, 1_000, 0)) == pytest.approx(7.7)
    assert held((0, 0, 0, 1_000)) == pytest.approx(58)
    # Many jobs are asked for their states, and for their records where few changed, or else every five seconds.
    whole, few = held((0, 12_000, 0, 0)), held((0, 12_000, 0, 0), (1, 12_000, 10, 0))
    assert few - whole == pytest.approx(1.56 + 0.91)
    assert held((0, 12_000, 0, 0), (1, 12_000, 1_001, 0)) == pytest.approx(2 * whole)
    assert held((0, 12_000, 0, 0), (6, 12_000, 0, 0)) == pytest.approx(2 * whole)
    # Where all records cost more, less often.
    assert held((0, 20_000, 0, 0), (6, 20_000, 0, 0)) == pytest.approx(154 + 2 * 2.6)
    assert [locks.leave_alone_s(nodes) for nodes in (64, 2_048, 10_000)] == pytest.approx([0.1856, 5.9392, 10.0])
    assert locks.of_calls(10, 0) < locks.of_calls(10, 10)


def test_slurm_on_paper_tells_nodes_when_they_are_due_and_else_that_it_does_not(tiny: Workload) -> None:
    slurm = PaperSlurm(tiny)
    answered(slurm, "read all")
    slurm.nodes_due = time.monotonic() + 60
    ended = slurm.end_one()
    assert ended is not None

    behind = answered(slurm, "read")
    slurm.nodes_due = 0.0
    abreast = answered(slurm, "read")

    assert [record for record in behind if record[0] != "job"] == [["nodes", 1]]
    assert (abreast[0], [record[2] for record in abreast[1:]]) == (["nodes", 0], list(ended.on))


def test_a_burst_is_seen_by_the_first_pass_after_it_unless_the_run_ends_before() -> None:
    passes = [bench.Pass(began, 0, 0, 1.5, 0, 0, 0) for began in (1.0, 3.0, 7.0)]
    first, last = (0.0, 2.0), (6.0, 8.0)

    assert bench.seen_after([first], passes, 20.0) == pytest.approx(2.5)
    assert bench.seen_after([first, last], passes, 20.0) == float("inf")
    assert bench.seen_after([first, last], passes, 7.0) == pytest.approx(2.5)
    assert bench.seen_after([last], passes, 7.0) is None


@pytest.mark.slow
def test_berthds_own_processes_run_under_a_workload(tiny: Workload, tmp_path: Path) -> None:
    found = bench.run(tiny, tmp_path / "log")

    figures = {one.name: one for one in bench.figures_of(tiny, found)}
    assert not found.problem, (tmp_path / "log").read_text()
    assert figures["submitted"].value > 0
    assert figures["ended"].value > 0
    assert figures["passes"].value >= 1
    assert figures["rss_mb"].good is True
    # On a loaded machine the run may end before a pass after its burst.
    seen = figures.get("burst_seen_s")
    assert seen is None or seen.good is True
    assert {name for name, one in figures.items() if one.must} - {"burst_seen_s"} == {"rss_mb"}
