# SPDX-License-Identifier: Apache-2.0
"""Reservations of cores and of nodes: what they take is kept, and no more; magnetic ones take their users' jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, until

SLEEP = "exec sleep 300"


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


@pytest.mark.parametrize("flags", ["magnetic", pytest.param("magnetic,flex", marks=pytest.mark.hard)])
def test_a_magnetic_reservation_takes_its_users_job(slurm: Slurm, flags: str) -> None:
    with reserved(slurm, "Users=bob", "Nodes=n2", f"Flags=ignore_jobs,{flags}"):
        full = [slurm.submit("-w", node, "--gpus=8", body=SLEEP) for node in ("n1", "n3", "n4")]
        until("the others to be full", lambda: running(slurm, full) == 3 or None)
        job = slurm.submit("--gpus=4", body=SLEEP, user="bob")
        assert nodes_of(slurm, job) == "n2"
        assert slurm.show(job)["Reservation"] == "r"


@pytest.mark.hard
def test_a_waiting_job_goes_to_a_magnetic_reservation_made_later(slurm: Slurm) -> None:
    full = [slurm.submit("-w", f"n{node}", "--gpus=8", body=SLEEP) for node in (1, 2, 3, 4)]
    until("all to be full", lambda: running(slurm, full) == 4 or None)
    job = slurm.submit("--gpus=4", body=SLEEP, user="bob")
    with reserved(slurm, "Users=bob", "Nodes=n2", "Flags=ignore_jobs,magnetic"):
        slurm.target.run(["scancel", str(full[1])], user="root")
        assert nodes_of(slurm, job) == "n2"
        assert slurm.show(job)["Reservation"] == "r"
