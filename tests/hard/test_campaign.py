# SPDX-License-Identifier: Apache-2.0
"""A calibration campaign over 64 nodes beside users' jobs: interrupted, resumed, finished, and what it costs the jobs.

The same jobs are submitted twice, at the same times: without a campaign and with one. Each job writes when it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from containers import cluster as clusters
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Container
from tests.slurm.test_calibrate import SCORES, campaign, clean, interrupt, measured, measuring
from topology.scores import decode

from .test_profiles import CLUSTER, VERSIONS

RESULT = Path(__file__).resolve().parents[2] / "build" / "campaign.json"
MOST_DELAY_S = 5.0
NODES = 64
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Asked:
    """Jobs of one kind that are submitted at one time."""

    at_s: float
    options: str
    seconds: int
    count: int = 1


# Each kind has nodes of its own, so that without a campaign none waits for another; each takes all that is there.
STREAM = (
    Asked(2, "-C a6000 --gpus=1", 20, 8),
    Asked(6, "-C h100 --gpus=8", 12, 16),
    Asked(12, "-C v100 -N16 --gpus-per-node=8", 10),
    Asked(16, "-C l40s --gpus=4", 10, 16),
    Asked(26, "-C h100 -N8 --gpus-per-node=4", 10, 2),
    Asked(30, "-C v100 --gpus=2", 12, 12),
    Asked(40, "-C l40s -N16 --gpus-per-node=8", 8),
    Asked(46, "-C h100 --gpus=8", 10, 8),
    Asked(52, "-C v100 -N16 --gpus-per-node=8", 8),
)


@pytest.fixture(params=VERSIONS)
def scale(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    words = [sys.executable, str(CLUSTER)]
    up = [*words, "up", "--slurm", version, "--profile", "scale", "--time-limit", "240"]
    subprocess.run(up, check=True)
    try:
        yield Slurm(version, Container(f"{clusters.Cluster(version, berth=True).project}-ctl"))
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            subprocess.run([*words, "down", "--slurm", version], check=True)


def waits(slurm: Slurm, label: str) -> list[float]:
    """Submit the stream; seconds from each job's submission to its start, in order."""
    folder = f"/home/tests/{label}"
    lines = [f"rm -rf {folder}; install -d -m 1777 {folder}", "begin=$(date +%s)"]
    for number, one in enumerate(STREAM):
        lines.append(f"while [ $(( $(date +%s) - begin )) -lt {int(one.at_s)} ]; do sleep 0.1; done")
        body = f"date +%s.%N > {folder}/start.$TAG; sleep {one.seconds}"
        lines.append(
            f"for i in $(seq {one.count}); do export TAG={number}.$i; date +%s.%N > {folder}/asked.$TAG;"
            f" sbatch -Q {one.options} -t 2 --mem=50 -o /dev/null --wrap '{body}' >/dev/null; done"
        )
    slurm.target.bash("\n".join(lines), timeout=300)
    script = f"cd {folder}; for f in asked.*; do t=${{f#asked.}}; echo $t $(cat $f) $(cat start.$t 2>/dev/null); done"

    def all_started() -> dict[str, float] | None:
        rows = [line.split() for line in slurm.target.bash(script).out.splitlines()]
        whole = {row[0]: float(row[2]) - float(row[1]) for row in rows if len(row) == 3}
        return whole if len(whole) == sum(one.count for one in STREAM) else None

    found = until("all users' jobs to start", all_started, 120, 1.0)
    return [found[f"{number}.{one}"] for number, asked in enumerate(STREAM) for one in range(1, asked.count + 1)]


def test_a_campaign_over_64_nodes_is_resumed_and_delays_no_job(scale: Slurm) -> None:
    scale.clear()
    alone = waits(scale, "alone")
    scale.clear()

    clean(scale)
    options = ("--pace 0.4", "--at-once 12")
    first = campaign(scale, *options)
    until("measurements to run", lambda: measuring(scale) or None)
    beside = waits(scale, "beside")
    said = interrupt(scale, first)
    assert not measuring(scale)
    done = len(measured(scale))
    assert 0 < done < NODES

    begun = time.monotonic()
    rest, _ = campaign(scale, "--pace 0.1", "--at-once 12").communicate(timeout=400)
    assert f"resumed: {done} of {NODES} nodes are done" in rest, rest
    assert f"{NODES} nodes measured, 0 failed, 0 left" in rest, rest
    assert sorted(measured(scale)) == sorted(f"n{number}" for number in range(1, NODES + 1))
    table = decode(scale.target.bash(f"cat {SCORES}", user="root").out.splitlines())
    assert len({(one.node, one.position) for one in table}) == NODES * 8

    delays = [with_it - without for with_it, without in zip(beside, alone, strict=True)]
    RESULT.parent.mkdir(exist_ok=True)
    figures = {
        "jobs": len(delays),
        "made_way": said.count("made way:"),
        "measured_beside_jobs": done,
        "resumed_s": round(time.monotonic() - begun, 1),
        "median_wait_alone_s": round(sorted(alone)[len(alone) // 2], 2),
        "median_wait_beside_s": round(sorted(beside)[len(beside) // 2], 2),
        "most_wait_alone_s": round(max(alone), 2),
        "most_wait_beside_s": round(max(beside), 2),
        "most_delay_s": round(max(delays), 2),
    }
    earlier = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps({**earlier, scale.name: figures}, indent=1) + "\n")
    print(figures)
    assert max(delays) <= MOST_DELAY_S
