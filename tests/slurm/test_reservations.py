"""Reservations of cores, GPUs and nodes: what they take is kept, and no more; magnetic ones take their users' jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from containers.cluster import PREFIX

from .conftest import OWN, cluster
from .harness import Slurm, until
from .target import Container

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
SLEEP = "exec sleep 300"
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A cluster whose accounting counts GPUs: only such a Slurm reserves them."""
    if OWN:
        pytest.skip("the machine's own Slurm may not count GPUs")
    version = str(request.param)
    cluster("up", "--slurm", version, "--profile", "accounting")
    try:
        yield Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)


@contextmanager
def reserved(slurm: Slurm, *words: str) -> Iterator[None]:
    """A reservation from now on."""
    base = ["scontrol", "create", "reservation", "ReservationName=r", "StartTime=now", "Duration=20"]
    slurm.target.run([*base, *words], user="root")
    try:
        slurm.passes()
        yield
    finally:
        slurm.target.bash("squeue -h -o %A | sort -u | xargs -r scancel --quiet", user="root")
        gone = ["scontrol", "delete", "ReservationName=r"]
        until("the reservation to go", lambda: slurm.target.run(gone, user="root", check=False).rc == 0 or None)


def running(slurm: Slurm, jobs: list[int]) -> int:
    return [slurm.state(job) for job in jobs].count("RUNNING")


def nodes_of(slurm: Slurm, job: int) -> str:
    slurm.wait_state(job, {"RUNNING"})
    return slurm.show(job)["NodeList"]


def test_a_core_of_two_nodes_leaves_all_their_gpus(slurm: Slurm) -> None:
    with reserved(slurm, "Users=bob", "CoreCnt=2", "Nodes=n1,n2", "Flags=ignore_jobs"):
        jobs = [slurm.submit("--gpus=4", body=SLEEP) for _ in range(8)]
        until("all eight to run", lambda: running(slurm, jobs) == 8 or None)


def test_counted_gpus_are_kept_and_the_others_are_given(slurm: Slurm) -> None:
    with reserved(slurm, "Users=bob", "TresPerNode=gres/gpu=4", "Nodes=n2", "Flags=ignore_jobs"):
        wide = slurm.submit("-w", "n2", "--gres=gpu:8", body=SLEEP)
        jobs = [slurm.submit("-w", "n2", "--gres=gpu:1", body=SLEEP) for _ in range(6)]
        until("four to run", lambda: running(slurm, jobs) == 4 or None)
        inside = slurm.submit("--reservation=r", "-w", "n2", "--gpus=4", body=SLEEP, user="bob")
        assert nodes_of(slurm, inside) == "n2"
        slurm.passes()
        assert running(slurm, jobs) == 4
        assert slurm.state(wide) == "PENDING"


def test_gpus_reserved_by_type_are_kept_and_the_others_are_given(slurm: Slurm) -> None:
    types = ",".join(f"gres/gpu:g{gpu}:1" for gpu in range(4))
    with reserved(slurm, "Users=bob", f"TresPerNode={types}", "Nodes=n2", "Flags=ignore_jobs"):
        jobs = [slurm.submit("-w", "n2", "--gres=gpu:1", body=SLEEP) for _ in range(6)]
        until("four to run", lambda: running(slurm, jobs) == 4 or None)
        slurm.passes()
        [used] = re.findall(r"GresUsed=(\S+)", slurm.target.run(["scontrol", "show", "node", "n2", "-d"]).out)
        held = re.findall(r"gpu:g(\d):1\(", used)
        assert sorted(set(held)) == ["4", "5", "6", "7"]


@pytest.mark.parametrize("flags", ["magnetic", "magnetic,flex"])
def test_a_magnetic_reservation_takes_its_users_job(slurm: Slurm, flags: str) -> None:
    with reserved(slurm, "Users=bob", "Nodes=n2", f"Flags=ignore_jobs,{flags}"):
        full = [slurm.submit("-w", node, "--gpus=8", body=SLEEP) for node in ("n1", "n3", "n4")]
        until("the others to be full", lambda: running(slurm, full) == 3 or None)
        job = slurm.submit("--gpus=4", body=SLEEP, user="bob")
        assert nodes_of(slurm, job) == "n2"
        assert slurm.show(job)["Reservation"] == "r"


def test_a_waiting_job_goes_to_a_magnetic_reservation_made_later(slurm: Slurm) -> None:
    full = [slurm.submit("-w", f"n{node}", "--gpus=8", body=SLEEP) for node in (1, 2, 3, 4)]
    until("all to be full", lambda: running(slurm, full) == 4 or None)
    job = slurm.submit("--gpus=4", body=SLEEP, user="bob")
    with reserved(slurm, "Users=bob", "Nodes=n2", "Flags=ignore_jobs,magnetic"):
        slurm.target.run(["scancel", str(full[1])], user="root")
        assert nodes_of(slurm, job) == "n2"
        assert slurm.show(job)["Reservation"] == "r"
