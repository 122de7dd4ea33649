# SPDX-License-Identifier: Apache-2.0
"""A GPU becomes slow between two calibrations: beating ranks, their guard and berthd find it, and jobs avoid it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from topology.calibrate.steps import ClockReport, JobReport
from topology.calibrate.steps import decode as decode_steps
from topology.scores import Score, decode, encode

from .harness import Slurm, until
from .nodes import Node, berth_conf, nodes_of
from .test_planner import segment_of

NAME = "n4"
MACHINE = "/etc/berth-fake/machine"
FOLDER = "/home/berth-steps"
SCORES, STEPS = f"{FOLDER}/scores.csv", f"{FOLDER}/steps"
CONF = f'[berthd]\nscores = "{SCORES}"\nsteps = "{STEPS}"\n'
FAST_MHZ, SLOW_MHZ = 2_400, 2_040
SECONDS = 90
"""Of these the guard needs 60 in which the GPU itself worked."""
pytestmark = pytest.mark.hard
"""Five minutes, in which jobs beat and berthd waits for all nodes: `make test-hard`."""

# A rank of a synchronous job: its GPU's clock says how long it computes, the slowest rank how long all of them take.
RANK = f"""
import os, time
import pynvml
from prolog_epilog import injob
word = os.environ["BERTH_WORD"].split(":")[int(os.environ["SLURM_LOCALID"])]
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByUUID(word.rpartition("/")[2].encode())
work = 0.2 * {FAST_MHZ}
together = work / {SLOW_MHZ}
assert injob.ready(), injob.why()
print("beats", flush=True)
due = time.monotonic()
for _ in range(round({SECONDS} / together)):
    own = work / pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)
    due += together
    time.sleep(max(0.0, due - time.monotonic()))
    injob.step(own=own)
"""


@pytest.fixture
def node(slurm: Slurm) -> Iterator[Node]:
    """A node whose GPUs all work at their power limit, and a cluster that was calibrated lately: all are typical."""
    found = nodes_of(slurm)[NAME]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86_400))
    table = [
        Score(name, gpu.position, gpu.uuid, "compute", 1.0, 3, 0.01, at, 0.02)
        for name, machine in slurm.machines.items()
        for gpu in machine.gpus
    ]
    slurm.target.bash(f"rm -rf {FOLDER}; install -d -m 755 -o slurm -g slurm {FOLDER}", user="root")
    slurm.target.run(["tee", SCORES], user="root", stdin=encode(table))
    slurm.target.run(["tee", f"{slurm.shared}/rank.py"], user="root", stdin=RANK)
    found.bash(f"echo 'gpu 0-7 util=99 sm-clock={FAST_MHZ} throttle=0x4' >{MACHINE}.live")
    try:
        with berth_conf(slurm, ""):
            slurm.target.bash(
                r"sed -i 's|^\[berthd\]$|" + CONF.replace("\n", r"\n") + "|' /etc/slurm/berth.conf", user="root"
            )
            slurm.target.run(["svc", "berthd", "restart"], user="root")
            slurm.berthd("start")
            yield found
    finally:
        found.bash(f"rm -f {MACHINE}.live; svc berth-guard restart")


def chosen(slurm: Slurm) -> int:
    """Returns the GPU that a job gets there whose class suffers from slow GPUs."""
    job = slurm.submit("--gpus=1", "-w", NAME, "-n1", "--mem=10", "--app-class=compute", body="exec sleep 60")
    slurm.wait_state(job, {"RUNNING"})
    position = int(segment_of(slurm, job)["gpus"])
    slurm.target.run(["scancel", str(job)], user="root")
    slurm.wait_state(job, {"CANCELLED"})
    slurm.settle()
    return position


def recorded(slurm: Slurm) -> list[JobReport | ClockReport]:
    text = slurm.target.bash(f"cat {STEPS} 2>/dev/null", user="root", check=False).out
    return list(decode_steps(text.splitlines())) if text else []


def scores(slurm: Slurm) -> dict[tuple[str, int], float]:
    text = slurm.target.bash(f"cat {STEPS}.scores", user="root").out
    return {(one.node, one.position): one.score for one in decode(text.splitlines())}


def test_a_gpu_that_became_slow_is_told_by_its_ranks_and_avoided(slurm: Slurm, node: Node) -> None:
    slow = chosen(slurm)
    node.bash(f"echo 'gpu {slow} sm-clock={SLOW_MHZ}' >>{MACHINE}.live")
    assert chosen(slurm) == slow, "nobody has told yet"

    body = f"exec srun -n8 /opt/berth/bin/python {slurm.shared}/rank.py"
    job = slurm.submit(
        "--gpu-tier=guaranteed", "--gpus=8", "-w", NAME, "-n8", "--mem=800", "--app-class=compute", body=body
    )
    assert slurm.finish(job, SECONDS + 90).count("beats") == 8
    reports = until("berthd to write down what the guard told", lambda: recorded(slurm) or None, 240, every=2.0)
    (told,) = [one for one in reports if isinstance(one, JobReport)]
    assert (told.job, told.app_class) == (str(job), "compute")
    assert [rank.position for rank in told.ranks] == list(range(8))
    assert {rank.position: round(rank.own_ms) for rank in told.ranks} == {
        gpu: round(200 * FAST_MHZ / SLOW_MHZ) if gpu == slow else 200 for gpu in range(8)
    }
    clocks = {one.position: one.sm_mhz for one in reports if isinstance(one, ClockReport)}
    assert clocks == {gpu: SLOW_MHZ if gpu == slow else FAST_MHZ for gpu in range(8)}

    slurm.target.run(["berth", "scores", "refresh"], user="root")
    now = scores(slurm)
    moved = now.pop((NAME, slow))
    print(f"the slow GPU's score: 1.00 -> {moved:.3f}; all others: {min(now.values()):.3f} to {max(now.values()):.3f}")
    assert 1.02 < moved < 1.04, "one user's word moves a score by 3 %"
    assert all(abs(score - 1.0) < 0.01 for score in now.values())
    until("berthd to plan by it", lambda: chosen(slurm) != slow or None, 60)
