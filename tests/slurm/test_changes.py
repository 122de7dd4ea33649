"""A user's change of a waiting job: refused where it would break the pin, let through where berthd only plans anew."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import pytest

from policy.daemon import pinned

from .harness import Slurm, job_id
from .scripted import later, scripted

LIST = "/run/berth/pinned"
REFUSED = (
    "ReqNodeList=n2",
    "ReqNodeList=",
    "Gres=gpu:1",
    "TresPerNode=gres/gpu:3",
    "NumNodes=2",
    "NumCPUs=3",
    "NumTasks=2",
    "CPUsPerTask=2",
    "MinCPUsNode=2",
    "MinMemoryNode=100",
    "Extra=mine",
    "ReqNodeList=n2 TimeLimit=3",
)
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


def put_list(slurm: Slurm, folder: Path, jobs: Iterable[int]) -> None:
    """Make these the jobs that berthd holds a pin on."""
    pinned.write(folder / "pinned", jobs)
    content = base64.b64encode((folder / "pinned").read_bytes()).decode()
    slurm.target.bash(f"echo {content} | base64 -d >{LIST}.new && mv {LIST}.new {LIST}", user="root")


def change(slurm: Slurm, job: int | str, words: str, user: str = "alice") -> tuple[int, str]:
    done = slurm.target.run(["scontrol", "update", f"JobId={job}", *words.split()], user=user, check=False)
    return done.rc, done.text


def held(slurm: Slurm, *options: str) -> int:
    words = ["sbatch", "-H", "-t", "5", "-o", "/dev/null", "--gpus=2", *options, "--wrap", "true"]
    return job_id(slurm.target.run(words))


@pytest.fixture
def answering(slurm: Slurm) -> Iterable[None]:
    """berthd stands still: it would keep the list itself."""
    with scripted(slurm, later(1, 2), later(1, 2)):
        yield
    slurm.target.bash(f"rm -f {LIST}", user="root")


@pytest.mark.usefixtures("answering")
def test_a_change_that_breaks_the_pin_is_refused_with_what_to_do_instead(slurm: Slurm, tmp_path: Path) -> None:
    job = held(slurm)
    put_list(slurm, tmp_path, [job])
    updates = [f"scontrol update JobId={job} {words} 2>&1; echo rc=$?; echo ===" for words in (*REFUSED, *ALLOWED)]
    said = slurm.target.bash("\n".join(updates)).out.split("===\n")
    for words, text in zip(REFUSED, said, strict=False):
        assert f"berth: job {job} has a planned place" in text, words
        assert "submit it again" in text, words
        assert "rc=1" in text, words
    assert said[len(REFUSED) :] == ["rc=0\n"] * len(ALLOWED) + [""]
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
    if not name:
        pytest.skip("this Slurm knows no SLUID")
    rc, text = change(slurm, name, "ReqNodeList=n2")
    assert (rc, "has a planned place" in text) == (1, True), text
