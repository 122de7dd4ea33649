# SPDX-License-Identifier: Apache-2.0
"""A calibration campaign beside users' jobs: it measures idle nodes, and makes way for jobs."""

from __future__ import annotations

import subprocess
import time

import pytest

from topology.calibrate.runs import decode
from topology.scores import decode as decode_scores

from .harness import Slurm, until

pytestmark = pytest.mark.any_slurm

FOLDER = "/home/berth-calibration"
RUNS, SCORES = f"{FOLDER}/runs", f"{FOLDER}/scores.csv"
MOST_DELAY_S = 5.0


def clean(slurm: Slurm) -> None:
    slurm.target.bash(f"rm -rf {FOLDER}; install -d {FOLDER}", user="root")


def campaign(slurm: Slurm, *options: str) -> subprocess.Popen[str]:
    """Starts a campaign on simulated GPUs."""
    words = ["berth calibrate run --simulated 8", f"--output {RUNS} --scores {SCORES}", *options]
    return slurm.target.popen(f"echo $$ >{FOLDER}/pid\nexec {' '.join(words)}", user="root")


def interrupt(slurm: Slurm, running: subprocess.Popen[str]) -> str:
    """Interrupts the campaign as Ctrl-C does; returns its output."""
    slurm.target.bash(f"kill -INT $(cat {FOLDER}/pid)", user="root")
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 130, said
    return said


def measuring(slurm: Slurm) -> set[str]:
    """Nodes on which the campaign's jobs run."""
    rows = slurm.target.run(["squeue", "-h", "-a", "-t", "running", "-o", "%j %N"], user="root").out.splitlines()
    return {row.split()[1] for row in rows if row.startswith("berth-calibrate-")}


def gpus_of_measurements(slurm: Slurm) -> list[str]:
    """Returns the GPUs that the campaign's jobs ask for."""
    words = ["squeue", "-h", "-a", "-t", "running", "-O", "Name:60,tres-per-node:400"]
    rows = slurm.target.run(words, user="root").out.splitlines()
    return [row.split()[1] for row in rows if row.startswith("berth-calibrate-")]


def measured(slurm: Slurm) -> list[str]:
    """Nodes with a visit, the oldest first."""
    text = slurm.target.bash(f"cat {RUNS} 2>/dev/null", user="root", check=False).out
    return [visit.node for visit in decode(text.splitlines())] if text else []


def test_a_campaign_leaves_used_nodes_alone_makes_way_and_goes_on_where_it_was_interrupted(slurm: Slurm) -> None:
    if not slurm.can_reconfigure:
        pytest.skip("berth must be installed on the nodes")
    clean(slurm)
    used = slurm.hold_gpus("n4", [3])
    first = campaign(slurm, "--pace 0.25")
    until("measurements on the free nodes", lambda: measuring(slurm) == {"n1", "n2", "n3"} or None)
    assert all(f"gpu:g{k}:1" in asked for asked in gpus_of_measurements(slurm) for k in range(8))

    asked = time.monotonic()
    job = slurm.submit("--gpus=8", "-C", "h100", body="sleep 3")
    slurm.wait_state(job, {"RUNNING", "COMPLETED"})
    assert time.monotonic() - asked < MOST_DELAY_S
    until("the other nodes to be measured", lambda: set(measured(slurm)) == {"n1", "n3"} or None)
    said = interrupt(slurm, first)
    assert f"n2 made way: for job {job}" in said
    assert "n4 running" not in said
    assert not measuring(slurm)

    slurm.target.run(["scancel", str(used)], user="root")
    slurm.wait_state(job, {"COMPLETED"})
    second, _ = campaign(slurm, "--pace 0.05").communicate(timeout=60)
    assert "resumed: 2 of 4 nodes are done" in second
    assert "4 nodes measured, 0 failed, 0 left" in second
    assert sorted(measured(slurm)) == ["n1", "n2", "n3", "n4"]
    table = slurm.target.bash(f"cat {SCORES}", user="root").out
    scores = decode_scores(table.splitlines())
    assert {(one.node, one.position) for one in scores} == {(f"n{n}", k) for n in (1, 2, 3, 4) for k in range(8)}

    third, _ = campaign(slurm).communicate(timeout=30)
    assert "0 nodes to be measured, 4 were measured lately" in third
