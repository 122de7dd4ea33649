# SPDX-License-Identifier: Apache-2.0
"""A user's change of a waiting job: refused where it would break the pin, let through where berthd only plans anew."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import pytest

from policy.daemon.write import pinned

from .forbidden import OF_A_PLACE
from .harness import Slurm, job_id, until
from .scripted import later, scripted

LIST = "/run/berth/pinned"
ALLOWED = (
    "TimeLimit=3",
    "Nice=10",
    "Features=h100",
    "ExcNodeList=n4",
    "Partition=gpu",
    "JobName=other",
    "Comment=mine",
    "Dependency=",
    "Licenses=",
    "StartTime=now+600",
)


HIDDEN = (
    *("xgres/seat:g0:1", "xgres/shard:g0:5", "xgres/gpu:g1:1", "xgres:gpu:g0:1", "gres/nic:gres/gpu:g0:1"),
    *("gresgpu:g0:1", "license/gresseat:g0:1", "gres/gpu:1;gres/seat:g0:1"),
)


def put_list(slurm: Slurm, folder: Path, jobs: Iterable[int], kind: int = pinned.PINNED) -> None:
    """Makes these the jobs that berthd has listed."""
    pinned.write(folder / "pinned", dict.fromkeys(jobs, kind))
    content = base64.b64encode((folder / "pinned").read_bytes()).decode()
    slurm.target.bash(f"echo {content} | base64 -d >{LIST}.new && mv {LIST}.new {LIST}", user="root")


def change(slurm: Slurm, job: int | str, words: str, user: str = "alice") -> tuple[int, str]:
    done = slurm.target.run(["scontrol", "update", f"JobId={job}", *words.split()], user=user, check=False)
    return done.rc, done.text


def test_a_held_job_gets_no_gpu_by_a_name_that_only_slurm_reads(slurm: Slurm) -> None:
    words = ["sbatch", "-H", "-t", "5", "-o", "/dev/null", "--wrap", "true"]
    job = job_id(slurm.target.run(words))

    for hidden in HIDDEN:
        for field in ("TresPerNode", "TresPerJob", "TresPerSocket", "TresPerTask"):
            rc, _ = change(slurm, job, f"{field}={hidden}")
            shown = slurm.show(job)
            assert (rc != 0 or field == "TresPerSocket", "gres" in shown.get(field, "")) == (True, False), (
                field,
                hidden,
            )


def held(slurm: Slurm, *options: str) -> int:
    words = ["sbatch", "-H", "-t", "5", "-o", "/dev/null", "--gpus=2", *options, "--wrap", "true"]
    return job_id(slurm.target.run(words))


@pytest.fixture
def answering(slurm: Slurm) -> Iterable[None]:
    """Stops berthd, which would keep the list itself."""
    with scripted(slurm, later(1, 2), later(1, 2)):
        yield
    slurm.target.bash(f"rm -f {LIST}", user="root")


@pytest.mark.usefixtures("answering")
def test_a_change_that_breaks_the_pin_is_refused_with_what_to_do_instead(slurm: Slurm, tmp_path: Path) -> None:
    job = held(slurm)
    put_list(slurm, tmp_path, [job])
    updates = [f"scontrol update JobId={job} {words} 2>&1; echo rc=$?; echo ===" for words in (*OF_A_PLACE, *ALLOWED)]
    said = slurm.target.bash("\n".join(updates)).out.split("===\n")
    for words, text in zip(OF_A_PLACE, said, strict=False):
        assert f"berth: job {job} has a planned place" in text, words
        assert "submit it again" in text, words
        assert "rc=1" in text, words
    assert said[len(OF_A_PLACE) :] == ["rc=0\n"] * len(ALLOWED) + [""]
    for verb in ("hold", "release"):
        slurm.target.run(["scontrol", verb, str(job)])


@pytest.mark.usefixtures("answering")
def test_jobs_without_a_pin_and_administrators_are_free(slurm: Slurm, tmp_path: Path) -> None:
    job = held(slurm)
    put_list(slurm, tmp_path, [job - 1, job + 1])
    assert change(slurm, job, "ReqNodeList=n2") == (0, "")
    put_list(slurm, tmp_path, [job])
    assert change(slurm, job, "ReqNodeList=n3", user="root") == (0, "")
    slurm.target.bash(f"echo damaged >{LIST}", user="root")
    assert change(slurm, job, "ReqNodeList=n2") == (0, "")
    slurm.target.bash(f"rm -f {LIST}; mkfifo {LIST}", user="root")
    assert change(slurm, job, "ReqNodeList=n3") == (0, "")


@pytest.mark.usefixtures("answering")
def test_of_an_array_only_the_pinned_task_is_barred(slurm: Slurm, tmp_path: Path) -> None:
    array = held(slurm, "--array=1-3")
    change(slurm, f"{array}_2", "Nice=1")
    task = int(slurm.target.run(["squeue", "-h", "-j", f"{array}_2", "-o", "%A"]).out)
    assert task != array
    put_list(slurm, tmp_path, [task])
    assert change(slurm, f"{array}_1", "ReqNodeList=n2")[0] == 0
    for name in (f"{array}_2", task):
        rc, text = change(slurm, name, "ReqNodeList=n2")
        assert (rc, "has a planned place" in text) == (1, True), text


@pytest.mark.usefixtures("answering")
def test_of_a_heterogeneous_job_only_the_pinned_component_is_barred(slurm: Slurm, tmp_path: Path) -> None:
    words = ["sbatch", "-H", "-t", "5", "-o", "/dev/null", "--gpus=2", ":", "--gpus=2", "--wrap", "true"]
    first = job_id(slurm.target.run(words))
    put_list(slurm, tmp_path, [first + 1])
    rc, text = change(slurm, first + 1, "ReqNodeList=n2")
    assert (rc, "has a planned place" in text) == (1, True), text
    assert "has a planned place" not in change(slurm, first, "Nice=5")[1]


@pytest.mark.usefixtures("answering")
def test_a_job_is_found_by_its_other_name_too(slurm: Slurm, tmp_path: Path) -> None:
    job = held(slurm)
    put_list(slurm, tmp_path, [job])
    name = slurm.target.run(["squeue", "-h", "-j", str(job), "-O", "SLUID:40"], check=False).out.strip()
    # 25.11 shows such a name, and takes none.
    if not name or " 25." in slurm.target.run(["scontrol", "--version"]).out:
        pytest.skip("this Slurm knows no SLUID")
    rc, text = change(slurm, name, "ReqNodeList=n2")
    assert (rc, "has a planned place" in text) == (1, True), text


@pytest.mark.usefixtures("answering")
def test_a_guest_that_waits_for_a_seat_is_started_by_nobody_but_berthd(slurm: Slurm, tmp_path: Path) -> None:
    job = held(slurm, "--begin=now+1hour")
    put_list(slurm, tmp_path, [job], pinned.PARKED)
    for words in ("StartTime=now", "StartTime=now+600", *OF_A_PLACE):
        rc, text = change(slurm, job, words)
        assert (rc, "is a guest that waits for a seat" in text) == (1, True), (words, text)
    for words in ALLOWED:
        if "StartTime" not in words:
            assert change(slurm, job, words) == (0, ""), words
    assert change(slurm, job, "StartTime=now", user="root") == (0, "")


@pytest.mark.usefixtures("answering")
def test_neither_is_a_task_of_an_array_of_such_guests(slurm: Slurm, tmp_path: Path) -> None:
    array = held(slurm, "--array=1-3", "--begin=now+1hour")
    put_list(slurm, tmp_path, [array], pinned.PARKED)
    rc, text = change(slurm, f"{array}_2", "StartTime=now")
    assert (rc, "is a guest that waits for a seat" in text) == (1, True), text


def test_the_owner_of_a_parked_guest_cannot_start_it_on_whole_gpus(slurm: Slurm) -> None:
    """The change is refused also before berthd has listed the job."""
    slurm.settle()
    owners = [slurm.submit("--gpu-tier=exclusive", "--gpus=8", "-w", node, body="sleep 60") for node in slurm.machines]
    for owner in owners:
        slurm.wait_state(owner, {"RUNNING"})
    guest = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", body="true")
    rc, text = change(slurm, guest, "StartTime=now")
    assert (rc, "berth: " in text) == (1, True), text
    until(
        "berthd to list the guest", lambda: "waits for a seat" in change(slurm, guest, "StartTime=now")[1] or None, 40
    )
