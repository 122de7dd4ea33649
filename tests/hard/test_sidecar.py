# SPDX-License-Identifier: Apache-2.0
"""berthd in a container beside slurmctld's, as in a pod: they share /run/berth, /etc/slurm and the network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import IMAGES, PREFIX
from tests.slurm.conftest import VERSIONS
from tests.slurm.harness import Slurm, seen
from tests.slurm.nodes import NAMES, let_go, nodes_of, said, waiting_body
from tests.slurm.target import Container
from tests.slurm.test_planner import segment_of
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "test_waiting.py::test_two_jobs_never_get_the_same_gpu",
    "test_waiting.py::test_a_waiting_job_moves_when_it_could_start_elsewhere",
    "test_shares.py::test_two_share_a_gpu_and_a_third_waits_until_one_ends",
    "test_guests.py::test_a_guest_sits_beside_a_host_with_a_device_and_no_gpu_in_the_books",
    "test_planner.py::test_every_task_of_an_array_runs_on_its_own_planned_gpus",
    "test_planner.py::test_a_requeued_job_is_planned_anew",
    "test_notice.py::test_berthd_hears_of_the_end_on_each_node_before_the_epilog_ends",
)
"""Tests of tests/slurm that start and stop nothing in the controller's container."""
# As a pod without a cgroup of its own has it.
NO_CGROUPS = """
sed -i 's|^ProctrackType=.*|ProctrackType=proctrack/linuxproc|' /etc/slurm/slurm.conf
sed -i 's|^TaskPlugin=.*|TaskPlugin=task/none|' /etc/slurm/slurm.conf
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
svc slurmctld restart
"""
AS_A_NEW_POD = """
svc slurmd stop
svc berth-guard stop
pkill -KILL slurmstepd
pkill -KILL -u alice
pkill -KILL -f nvidia-cuda-mps
rm -rf /var/spool/slurmd.n2/*
"""
"""No process of the former one is there."""
TO_DEFAULT = """/opt/berth/bin/python - <<'END'
from prolog_epilog.node import devices
from prolog_epilog.node.paths import Paths
with devices.driver() as driver:
    for gpu in devices.gpus(Paths()):
        driver.set_compute_mode(gpu.uuid, devices.DEFAULT)
END
"""
START = "svc berth-guard start\nsvc slurmd start"
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]


def docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, capture_output=True)


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A cluster whose ctl has no berthd."""
    version = str(request.param)
    prefix = f"{PREFIX}-pod"
    names = {"BERTH_CLUSTER_PREFIX": prefix, "BERTH_CLUSTER_IMAGES": IMAGES}
    command = [sys.executable, str(ROOT / "containers" / "cluster.py")]

    def cluster(*words: str) -> None:
        subprocess.run([*command, *words, "--slurm", version], env={**os.environ, **names}, check=True)

    cluster("build")
    try:
        cluster("up", "--sidecar", "--no-build", "--time-limit", "240")
        yield Slurm(version, Container(f"{prefix}{version.replace('.', '')}-ctl"))
    finally:
        cluster("down")


@pytest.fixture(autouse=True)
def clear(slurm: Slurm) -> None:
    slurm.clear()


def sidecar(slurm: Slurm) -> str:
    name = slurm.target.name if isinstance(slurm.target, Container) else ""
    return name.removesuffix("ctl") + "berthd"


def test_the_two_containers_share_neither_processes_nor_other_folders(slurm: Slurm) -> None:
    inside = Container(sidecar(slurm))
    processes = [one.run(["ps", "-eo", "args"], user="root").out for one in (slurm.target, inside)]
    slurm.target.run(["touch", "/run/only-here", "/home/only-here"], user="root")

    assert ["berthd" in one for one in processes] == [False, True]
    assert ["slurmctld -D" in one for one in processes] == [True, False]
    assert inside.run(["sh", "-c", "ls /run /home"], user="root").out.count("only-here") == 0
    assert inside.run(["sh", "-c", "ls -d /run/systemd/system"], user="root", check=False).rc


def test_what_jobs_do_on_the_usual_cluster_they_do_here(slurm: Slurm) -> None:
    environment = {**os.environ, "BERTH_TEST_SLURM": sidecar(slurm).replace("-berthd", "-ctl")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += [f"tests/slurm/{one}" for one in TESTS]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0


def test_jobs_are_slurms_while_the_sidecar_is_away_and_planned_when_it_is_back(slurm: Slurm) -> None:
    docker("kill", sidecar(slurm))
    away = slurm.submit("--gpus=2")
    assert len(seen(slurm.finish(away))[0].gpus) == 2
    docker("start", sidecar(slurm))
    until("berthd to answer", lambda: slurm._berthd_is_ready() or None)

    [probe] = seen(slurm.finish(job := slurm.submit("--gpus=2")))
    assert ",".join(map(str, probe.gpus)) == segment_of(slurm, job)["gpus"]


def test_a_sidecar_that_is_stopped_leaves_no_pin(slurm: Slurm) -> None:
    holders = [slurm.submit("--gpus=8", "-w", node, "-t", "30", body="exec sleep 300") for node in NAMES]
    for job in holders:
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    waiting = slurm.submit("--gpus=2")
    assert slurm.show(waiting)["ReqNodeList"] != "(null)"
    docker("stop", "--time", "60", sidecar(slurm))

    assert slurm.show(waiting)["ReqNodeList"] == "(null)"
    docker("start", sidecar(slurm))
    until("the job to be planned again", lambda: slurm.show(waiting)["ReqNodeList"] != "(null)" or None)


@pytest.mark.parametrize("own_run", [False, True])
def test_a_node_whose_pod_starts_anew_loses_its_jobs_and_takes_shares_again(slurm: Slurm, *, own_run: bool) -> None:
    """With the machine's /run/berth, and with one of the pod's own, which is empty then."""
    node = nodes_of(slurm)["n2"]
    share = slurm.submit("-w", "n2", "-n1", "--gpu-share=30", "--no-requeue", body=waiting_body())
    slurm.wait_state(share, {"RUNNING"})
    said(slurm, share)
    node.bash(AS_A_NEW_POD + ("rm -rf /run/berth/*\n" * own_run) + START)

    # For its first 20 s Slurm believes of no job that it is gone, and it asks as a node registers.
    def registers() -> bool:
        node.bash("svc slurmd restart")
        return slurm.state(share) == "NODE_FAIL"

    until("Slurm to see that the job is gone", lambda: registers() or None, 120, 5)

    again = slurm.submit("-w", "n2", "-n1", "--gpu-share=30", body=waiting_body())
    said(slurm, again)
    let_go(slurm, again)
    slurm.finish(again)
    if own_run:
        # What the driver keeps and nobody knows any more: `berth doctor node` names it.
        assert "compute mode" in node.left()
        node.bash(TO_DEFAULT)
    else:
        until(lambda: f"nothing to be left, and there is {node.left()}", lambda: not node.left() or None)


def test_without_cgroups_jobs_are_told_their_gpus_and_can_open_all(slurm: Slurm) -> None:
    slurm.target.bash(NO_CGROUPS, user="root")
    for node in nodes_of(slurm).values():
        node.bash("svc slurmd restart")
    until("slurmctld to answer", lambda: slurm.target.run(["scontrol", "ping"], check=False).rc == 0 or None)
    slurm.clear()

    [probe] = seen(slurm.finish(job := slurm.submit("--gpus=2", "-w", "n2")))
    assert probe.gpus == tuple(range(8))
    assert len(probe.cuda.split(",")) == 2
    assert segment_of(slurm, job)["gpus"] == probe.cuda
