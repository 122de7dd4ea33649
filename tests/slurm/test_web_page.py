# SPDX-License-Identifier: Apache-2.0
"""Checks the page of `berth web` beside a real slurmctld."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.harness import Slurm
from tests.slurm.nodes import berth_conf
from tests.waiting import until

pytestmark = pytest.mark.any_slurm

PAGE = "http://127.0.0.1:8499"


def got(slurm: Slurm, address: str) -> str:
    """Returns what an address on the controller answers; empty without an answer."""
    code = f"import urllib.request as u; print(u.urlopen('{address}', timeout=5).read().decode())"
    return slurm.target.run(["python3", "-c", code], check=False).out


def shown(slurm: Slurm, page: str, job: int) -> dict[str, Any]:
    """The job as a page shows it, once that shows that it runs."""

    def found() -> dict[str, Any] | None:
        answer = got(slurm, f"{page}/api/moment")
        jobs = json.loads(answer)["jobs"] if answer else []
        return next((one for one in jobs if one["id"] == str(job) and one["state"] == "RUNNING"), None)

    return until("the page to show the job", found)


@pytest.fixture
def page(slurm: Slurm) -> Iterator[None]:
    command = f"cd /tmp && exec timeout 120 berth web --port {PAGE.rpartition(':')[2]} --every 1"
    slurm.target.bash(f"setsid sh -c '{command}' </dev/null >/tmp/web.log 2>&1 & echo $! >/tmp/web.pid", user="root")
    yield
    slurm.target.bash("kill $(cat /tmp/web.pid); rm /tmp/web.pid", user="root", check=False)


@pytest.mark.usefixtures("page")
def test_the_page_shows_where_a_job_runs_and_why(slurm: Slurm) -> None:
    job = slurm.submit("--gres=gpu:2", "-w", "n3", body="sleep 100")

    found = shown(slurm, PAGE, job)
    assert (found["user"], found["gpus"], found["level"]) == ("alice", 2, "nvlink")
    room = json.loads(got(slurm, f"{PAGE}/api/room"))
    place, gpus = found["places"][0]
    assert room["nodes"][place]["name"] == "n3"
    assert gpus.bit_count() == 2


SERVED = """[users]
hosts = "ctl"
[metrics]
enabled = true
[web]
enabled = true
options = "--port 8498 --every 1"
"""


def test_berthd_serves_the_page_metrics_and_questions(slurm: Slurm) -> None:
    with berth_conf(slurm, SERVED):
        job = slurm.submit("--gres=gpu:2", "-w", "n3", body="sleep 100")
        found = shown(slurm, "http://127.0.0.1:8498", job)
        until(
            "the metrics to count the job",
            lambda: 'running{sharing="whole"} 1.0' in got(slurm, "http://127.0.0.1:6828/metrics/jobs"),
        )
        scheduler = got(slurm, "http://127.0.0.1:6828/metrics/scheduler")
        told = slurm.target.run(["berth", "why", str(job)], user="alice").out

    assert (found["user"], found["gpus"]) == ("alice", 2)
    assert "berth_answering 1.0" in scheduler
    assert str(job) in told
