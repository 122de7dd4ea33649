# SPDX-License-Identifier: Apache-2.0
"""`berth observe` on a cluster that nobody has changed for Berth, called by an ordinary user. `make test-hard`."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.harness import job_id, until
from tests.slurm.target import Container, Target

from .untouched import BERTH, described, give, untouched

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]

LEAVES = "SwitchName=a Nodes=n1,n2\nSwitchName=b Nodes=n3,n4\nSwitchName=top Switches=a,b\n"
READS = re.compile(r"_INFO(_SINGLE)?$|^REQUEST_PING$|^REQUEST_SHARE_INFO$|^REQUEST_STATS_INFO$")
"""Messages to slurmctld that only read."""


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest) -> Iterator[Container]:
    with untouched(request.param) as target:
        give(target, {f"{node}.json": text for node, text in described(request.param).items()}, "/home/alice/machines")
        give(target, {"topology.conf": LEAVES}, "/home/alice")
        yield target


@pytest.fixture(autouse=True)
def quiet(site: Container) -> Iterator[None]:
    yield
    site.bash("squeue -h -o %A | sort -u | xargs -r scancel --quiet", user="root")
    until("idle nodes", lambda: not site.run(["squeue", "-h"]).out and "idle" in site.run(["sinfo", "-h"]).out)


def submit(site: Target, *options: str, state: str = "RUNNING") -> int:
    words = ["sbatch", "-o", "/dev/null", "-t", "30", "--mem=10", *options, "--wrap", "exec sleep 900"]
    job = job_id(site.run(words))
    until(f"job {job} {state}", lambda: site.run(["squeue", "-h", "-j", str(job), "-o", "%T"]).out.strip() == state)
    return job


def observe(site: Target, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.run([BERTH, "observe", "--json", *options], timeout=120).out)
    return found


def configuration(site: Target) -> str:
    """Returns the files, and Slurm's configuration, partitions and nodes, for a comparison."""
    return site.bash(
        """
        cd /etc/slurm && sha256sum *
        scontrol show config | grep -vE '^(Configuration data|BOOT_TIME|NEXT_JOB_ID)'
        scontrol show partition; scontrol show node | grep -vE 'CPULoad|FreeMem|Last|BootTime|State='
        """,
        user="root",
    ).out


def calls(site: Target) -> dict[str, int]:
    """The messages by type that slurmctld has counted."""
    found = site.run(["sdiag"], user="root").out.partition("by message type")[2].partition("by user")[0]
    return {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\) count:(\d+)", found)}


def test_findings_come_within_a_minute_and_nothing_is_changed(site: Container) -> None:
    pair = submit(site, "-w", "n3", "--gres=gpu:a6000:2")
    gang = submit(site, "-w", "n1,n3", "-N2", "--gres=gpu:1")
    full = submit(site, "-w", "n4", "--gres=gpu:l40s:6")
    waits = submit(site, "-w", "n4", "--gres=gpu:4", state="PENDING")
    before, counted = configuration(site), calls(site)
    began = time.monotonic()

    found = observe(site, "--topology-dir", "/home/alice/machines", "--fabric", "/home/alice/topology.conf", "--days=0")

    took = time.monotonic() - began
    after = calls(site)
    assert took < 60
    assert configuration(site) == before
    asked = {name for name, count in after.items() if count > counted.get(name, 0)}
    assert all(READS.search(name) for name in asked), asked
    assert (found["gpus"], found["free_gpus"], found["nodes"]) == (32, 32 - 2 - 2 - 6, 4)
    assert [one["job"] for one in found["unlinked"]] == [pair]
    assert found["unlinked"][0]["better"]["min_gbps"] > 0
    assert [one["job"] for one in found["more_leaves"]] == [gang]
    assert found["running"] == 3
    assert full not in [one["job"] for one in found["weaker"]]
    assert sum(one["jobs"] for one in found["waiting"].values()) == 1
    assert waits in next(iter(found["waiting"].values()))["ids"]


def test_a_model_can_be_described_by_its_gres_type(site: Container) -> None:
    submit(site, "-w", "n3", "--gres=gpu:a6000:2")

    nothing = observe(site, "--days=0")
    found = observe(site, "--days=0", "--machine", "a6000=/home/alice/machines/n3.json")

    assert nothing["links_not_known"] == ["n1", "n2", "n3", "n4"]
    assert nothing["unlinked"] == []
    assert found["links_not_known"] == ["n1", "n2", "n4"]
    assert len(found["unlinked"]) == 1


def test_without_accounting_the_rest_is_shown(site: Container) -> None:
    answer = site.run([BERTH, "observe"])

    assert "Accounting: sacct did not answer" in answer.out
    assert "32 GPUs on 4 nodes, 32 free" in answer.out
