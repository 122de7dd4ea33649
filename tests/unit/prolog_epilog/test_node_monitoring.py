# SPDX-License-Identifier: Apache-2.0
"""The files in which monitoring programs look which jobs are on which GPU."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from prolog_epilog.guard.seats.watch import Watch
from prolog_epilog.monitoring import FORMAT
from prolog_epilog.node.devices import Driver
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.tenants.audit import Judge
from tests.fakes import nvml
from tests.fakes.mps.world import USER
from tests.unit.node_world import World, berth

DCGM_NAME = re.compile(r"\d+(\.\d+)?")
"""The names that dcgm-exporter looks at."""
GUEST = {"way": "time", "tier": "opportunistic"}
OWNER = {"way": "time", "tier": "guaranteed", "mem": 1_024}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    """A node with eight GPUs of which number and device file differ."""
    world = World(tmp_path)
    world.with_gpus()
    (tmp_path / "machine").write_text((nvml.MACHINES / "hgx-h100").read_text())
    world.settings |= {"jobs_for_dcgm": str(tmp_path / "dcgm"), "jobs_for_jobstats": str(tmp_path / "gpustat")}
    yield world
    for job in world.books():
        world.run("epilog", job=job)


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def dcgm(node: World) -> dict[str, str]:
    return content(node.folder / "dcgm")


def gpustat(node: World) -> dict[str, str]:
    return content(node.folder / "gpustat")


def run(node: World, context: str, extra: str = "", gpus: str = "", job: int = 7, start: str = "") -> None:
    done = node.run(context, extra, gpus, job, USER, **({"SLURM_JOB_START_TIME": start} if start else {}))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_job_stands_at_each_of_its_gpus_by_the_drivers_number(node: World) -> None:
    run(node, "prolog", berth(2, 5), "5")

    # hgx-h100: device files 2 and 5 are the driver's GPUs 1 and 5.
    assert dcgm(node) == {"1": "7\n", "5": "7\n"}
    uuids = ("GPU-9c8f90a7-b9a8-1fde-134e-bd3bab3c9828", "GPU-d6aceb5e-fed5-4a23-d742-9b3d8c32710f")
    assert gpustat(node) == dict.fromkeys(("1", "5", *uuids), f"7 {USER}\n")
    assert all(DCGM_NAME.fullmatch(name) for name in dcgm(node))
    assert {oct(path.stat().st_mode & 0o777) for path in (node.folder / "dcgm").iterdir()} == {"0o644"}

    run(node, "epilog", berth(2, 5), "5")

    assert dcgm(node) == gpustat(node) == {}


def test_a_job_of_plain_slurm_is_listed_with_all_that_slurm_gave_it(node: World) -> None:
    node.slurm_knows("gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)")

    run(node, "prolog", gpus="1")

    assert dcgm(node) == {"2": "7\n", "3": "7\n"}
    run(node, "epilog", gpus="1")
    assert dcgm(node) == {}


def test_packed_jobs_are_several_lines_and_leave_one_by_one(node: World) -> None:
    for job in (7, 8):
        run(node, "prolog", berth(0, share=30, way="time"), "0", job)

    assert dcgm(node) == {"2": "7\n8\n"}
    assert gpustat(node)["2"] == f"7 {USER}\n8 {USER}\n"
    run(node, "epilog", berth(0, share=30, way="time"), "0", 7)
    assert dcgm(node) == {"2": "8\n"}
    run(node, "epilog", berth(0, share=30, way="time"), "0", 8)
    assert dcgm(node) == gpustat(node) == {}


def test_a_guest_is_listed_beside_its_owner_and_for_jobstats_the_owner_counts(node: World) -> None:
    run(node, "prolog", berth(0, **OWNER), "0", 7)
    run(node, "prolog", berth(0, **GUEST), "", 8)

    assert dcgm(node) == {"2": "7\n8\n"}
    assert gpustat(node)["2"] == f"7 {USER}\n"
    run(node, "epilog", berth(0, **OWNER), "0", 7)
    assert gpustat(node)["2"] == f"8 {USER}\n"
    run(node, "epilog", berth(0, **GUEST), "", 8)
    assert gpustat(node) == {}


def test_jobs_whose_epilog_was_lost_go_with_the_next_job(node: World) -> None:
    run(node, "prolog", berth(0), "0", 7)
    run(node, "prolog", berth(1), "1", 8)
    records = node.folder / "records"
    node.scontrol(
        f'[ "$3" = 7 ] && {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}\ncat {records}/$3'
    )

    run(node, "prolog", berth(4), "4", 9)

    assert dcgm(node) == {"3": "8\n", "7": "9\n"}


class Slurm:
    """Knows the jobs that run; `then` happens while it is asked."""

    def __init__(self, *known: int, then: Callable[[], None] = lambda: None) -> None:
        self.known, self.then = set(known), then

    def is_there(self, job: int, _node: str) -> bool:
        self.then()
        return job in self.known


def guard_looks(node: World, slurm: Slurm) -> str:
    settings = NodeConfig()._replace(
        jobs_for_dcgm=str(node.settings["jobs_for_dcgm"]), jobs_for_jobstats=str(node.settings["jobs_for_jobstats"])
    )
    watch = Watch(node.paths, settings, slurm, Judge("warn"), "boot")  # type: ignore[arg-type]
    watch.clear_lost()
    return "\n".join(watch.said)


def test_the_guard_takes_out_a_job_whose_epilog_was_lost(node: World) -> None:
    run(node, "prolog", berth(0), "0", 7)
    run(node, "prolog", berth(1), "1", 8)

    said = guard_looks(node, Slurm(8))

    assert "job 7 is over" in said
    assert "job 8" not in said
    assert dcgm(node) == {"3": "8\n"}
    assert gpustat(node)["3"] == f"8 {USER}\n"


def test_the_guard_leaves_a_job_alone_that_begins_again_while_slurm_is_asked(node: World) -> None:
    run(node, "prolog", berth(0), "0", 7, start="1000")

    guard_looks(node, Slurm(then=lambda: run(node, "prolog", berth(0), "0", 7, start="2000")))

    assert dcgm(node) == {"2": "7\n"}


def test_a_gpu_that_is_given_as_a_whole_has_no_earlier_job_on_it(node: World) -> None:
    for job in (7, 8):
        run(node, "prolog", berth(0), "0", job)

    assert dcgm(node) == {"2": "8\n"}


def test_a_late_epilog_leaves_the_next_run_alone(node: World) -> None:
    run(node, "prolog", berth(0), "0", start="2000")
    run(node, "epilog", berth(0), "0", start="1000")
    assert dcgm(node) == {"2": "7\n"}
    run(node, "epilog", berth(0), "0", start="2000")
    assert dcgm(node) == {}


def test_after_a_crash_files_of_another_boot_are_gone(node: World) -> None:
    for folder, text in (("dcgm", "6\n"), ("gpustat", f"6 {USER}\n")):
        (node.folder / folder).mkdir()
        (node.folder / folder / "3").write_text(text)
    node.root.mkdir()
    old = {"format": FORMAT, "boot": "another", "jobs": [{"job": 6, "uid": 1, "start": 1, "owns": True, "gpus": []}]}
    (node.root / "listed.json").write_text(json.dumps(old))

    run(node, "prolog", berth(0), "0")

    assert dcgm(node) == {"2": "7\n"}
    assert gpustat(node)["2"] == f"7 {USER}\n"
    assert "3" not in gpustat(node)


def test_prologs_and_epilogs_at_once_lose_no_line(node: World) -> None:
    jobs = range(10, 15)
    for job in jobs:
        node.slurm_gave(berth(job - 10), job)
    command = node.command("prolog")

    def call(context: str, job: int) -> subprocess.CompletedProcess[str]:
        words = [
            word.replace("prolog()", f"{context}()").replace("import prolog", f"import {context}") for word in command
        ]
        environment = node.slurmd(context, berth(job - 10), str(job - 10), job)
        return subprocess.run(words, env=environment, cwd=Path.cwd(), capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(4) as pool:
        assert {done.returncode for done in pool.map(lambda job: call("prolog", job), jobs)} == {0}
        assert sorted("".join(dcgm(node).values()).split()) == [str(job) for job in jobs]
        assert {done.returncode for done in pool.map(lambda job: call("epilog", job), jobs)} == {0}
    assert dcgm(node) == gpustat(node) == {}


def test_one_folder_alone_is_written_where_the_site_asks_for_one(node: World) -> None:
    del node.settings["jobs_for_jobstats"]
    run(node, "prolog", berth(0), "0")
    assert dcgm(node) == {"2": "7\n"}
    assert not (node.folder / "gpustat").exists()


def test_a_job_without_gpus_is_not_listed(node: World) -> None:
    run(node, "prolog")
    run(node, "epilog")
    assert not (node.folder / "dcgm").exists()


@pytest.mark.parametrize("wrong", ["/nowhere/at/all", "{folder}/file"])
def test_a_folder_that_cannot_be_had_is_one_sentence_and_the_job_starts(node: World, wrong: str) -> None:
    (node.folder / "file").touch()
    node.settings["jobs_for_dcgm"] = wrong.format(folder=node.folder)

    done = node.run("prolog", berth(0), "0")

    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"\[BERTH-9\d\d\]", done.stderr)


def test_a_mig_instance_is_named_by_its_gpu_and_its_number() -> None:
    class Nothing(Exception):
        pass

    driver = Driver(
        SimpleNamespace(
            nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
            nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: f"of {handle!r}",
            nvmlDeviceGetIndex=lambda gpu: 2 if gpu == "of b'MIG-1'" else 0,
            nvmlDeviceGetGpuInstanceId=lambda _: 10,
            **dict.fromkeys(("NVMLError", "NVMLError_GpuIsLost", "NVMLError_NotFound"), Nothing),
        )
    )

    assert driver.instance_name("MIG-1") == "2.10"
