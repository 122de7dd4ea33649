# SPDX-License-Identifier: Apache-2.0
"""A job's record that Berth cannot read costs that job alone, through every gateway."""

import json
import shutil
from pathlib import Path

import pytest

from policy.formats.errors import SlurmError
from policy.slurm.by_command.recorded import recorded_gateway
from policy.slurm.by_library.libslurm import LibslurmGateway
from tests.unit.policy.slurm.stand_in import StandIn
from tests.unit.policy.slurm.test_libslurm import DATA, VERSIONS
from tests.unit.pyslurm_world import RUNNING, Job, World, held

PRIORITY = 4
"""The place of a number in a line of the recorded queue."""


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / f"slurm-{request.param}", tmp_path / "recording"))


def spoil(folder: Path, job_id: str, place: int, value: str) -> None:
    file = folder / "squeue"
    lines = [line.split("|~") for line in file.read_text().splitlines()]
    for line in lines:
        if line[0] == job_id:
            line[place] = value
    file.write_text("".join("|~".join(line) + "\n" for line in lines))


def pending(folder: Path) -> str:
    return next(line.split("|~")[0] for line in (folder / "squeue").read_text().splitlines() if "PENDING" in line)


@pytest.mark.parametrize("value", ["many", ""])
def test_a_line_of_the_queue_that_cannot_be_read_costs_its_job(folder: Path, value: str) -> None:
    whole = recorded_gateway(folder).read(ended=False)
    job_id = pending(folder)
    spoil(folder, job_id, PRIORITY, value)

    gateway = recorded_gateway(folder)
    reading = gateway.read(ended=False)

    assert {job.id for job in reading.jobs} == {job.id for job in whole.jobs} - {int(job_id)}
    assert list(reading.unreadable) == [int(job_id)]
    assert "ValueError" in reading.unreadable[int(job_id)]
    assert (reading.nodes, whole.unreadable) == (whole.nodes, {})
    spoil(folder, job_id, PRIORITY, "5")
    again = gateway.read(ended=False)
    assert ({job.id for job in again.jobs}, again.unreadable) == ({job.id for job in whole.jobs}, {})


def test_an_array_whose_list_of_tasks_cannot_be_read_is_left_out_as_a_whole(folder: Path) -> None:
    whole = recorded_gateway(folder).read(ended=False)
    array = next(job.id for job in whole.jobs if job.state == "ARRAY")
    file = folder / "squeue-arrays"
    lines = [line if "[" not in line else f"{array}|{array}_[1-x]|" for line in file.read_text().splitlines()]
    file.write_text("".join(f"{line}\n" for line in lines))

    reading = recorded_gateway(folder).read(ended=False)

    assert {job.id for job in reading.jobs} == {job.id for job in whole.jobs} - {array}
    assert list(reading.unreadable) == [array]


def test_a_record_in_json_that_cannot_be_read_hides_no_other_jobs_gpus(folder: Path) -> None:
    whole = recorded_gateway(folder).read(ended=False)
    file = folder / "squeue-json"
    answer = json.loads(file.read_text())
    untyped = next(job for job in answer["jobs"] if "gres_detail" in job)
    bad = {**untyped, "job_id": 9_999, "restart_cnt": "never"}
    answer["jobs"].insert(0, bad)
    file.write_text(json.dumps(answer))

    reading = recorded_gateway(folder).read(ended=False)

    assert (reading.jobs, reading.nodes) == (whole.jobs, whole.nodes)
    assert next(job for job in reading.jobs if job.id == untyped["job_id"]).holds == (1 << 4,)


@pytest.mark.parametrize(
    ("place", "value"),
    [(6, "many"), (14, "n[1-"), (27, "1-x")],
    ids=["a number", "a list of nodes", "a list of tasks"],
)
def test_a_record_of_libslurm_that_cannot_be_read_costs_its_job(
    folder: Path, tmp_path: Path, place: int, value: str
) -> None:
    stand_in = StandIn(tmp_path)
    recorded = (folder / "berth-slurm-read").read_text().rpartition('["ok"]')[0].partition("\n")[2]
    lines = [json.loads(line) for line in recorded.splitlines()]
    good = next(line for line in lines if line[0] == "job" and line[2] == "PENDING" and not line[27])
    bad = [*good[:place], value, *good[place + 1 :]]
    before = "".join(json.dumps(bad if line is good else line, separators=(",", ":")) + "\n" for line in lines)
    stand_in.answers("read", before, "", json.dumps(good, separators=(",", ":")), f'["gone","job",{good[1]}]')
    gateway = LibslurmGateway(stand_in.path)
    jobs = {line[1] for line in lines if line[0] == "job"}

    first = gateway.read(ended=True)
    # It is told once, and stays unreadable until it changes.
    second = gateway.read(ended=True)
    mended = gateway.read(ended=True)
    over = gateway.read(ended=True)

    gateway.close()
    assert {job.id for job in first.jobs} == jobs - {good[1]}
    assert (list(first.unreadable), second.unreadable) == ([good[1]], first.unreadable)
    assert first.nodes == mended.nodes
    assert ({job.id for job in mended.jobs}, mended.unreadable) == (jobs, {})
    assert {job.id for job in over.jobs} == jobs - {good[1]}
    assert [line for line in stand_in.asked if line.startswith("read")] == ["read all", "read", "read", "read"]


def test_a_change_of_a_job_whose_record_cannot_be_read_is_refused(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.answers("job", '["job",7,"PENDING","no"]')
    gateway = LibslurmGateway(stand_in.path)

    with pytest.raises(SlurmError, match="record of job 7 cannot be read"):
        gateway.job(7)
    gateway.close()


@pytest.mark.parametrize(
    "values",
    [
        {"allocated_nodes": "n[1-"},
        {"licenses": ValueError("invalid literal")},
        {"array_tasks_waiting": "1-x"},
    ],
    ids=["a list of nodes", "what pyslurm stumbles over", "a list of tasks"],
)
def test_a_job_of_pyslurm_that_cannot_be_read_costs_that_job_and_keeps_its_gpus(values: dict[str, object]) -> None:
    config = "SelectTypeParameters    = CR_CORE_MEMORY\nSLURM_VERSION = 25.11.7\n"
    world = World(printed={"scontrol show config": config})
    world.jobs = [Job(1, {"n3": held(2)}, **RUNNING | values), Job(2), Job(3, {"n1": held(5)}, **RUNNING)]

    reading = world.gateway().read(ended=False)

    assert ([job.id for job in reading.jobs], list(reading.unreadable)) == ([2, 3], [1])
    assert {node.name: node.gpus_used for node in reading.nodes} == {"n1": 1 << 5, "n3": 1 << 2}
