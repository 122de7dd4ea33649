# SPDX-License-Identifier: Apache-2.0
"""Trouble while a job runs, on the real Slurm with simulated drivers: GPUs that idle, a hang, a slow rank.

Beside each job in trouble runs one without, which must not be told of. So that a test takes no hour, the times of the
guard and of berthd are a fortieth of a site's, and an hour of step times is half a minute. What was measured is kept.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from topology.calibrate.steps import FORMAT, JobReport, Rank, encode

from .harness import Slurm, until
from .nodes import CONF, Node, berth_conf, nodes_of, output
from .target import Container
from .test_planner import segment_of

pytestmark = pytest.mark.any_slurm

BUILD = Path(__file__).resolve().parents[2] / "build"
MACHINE = "/etc/berth-fake/machine"
PYTHON = "/opt/berth/bin/python"
FOLDER = "/home/berth-looks"
HERE = ("n1", "n4")
SCALE, HOUR_SCALE = 40.0, 120.0
LIMIT = "0:45"
"""The rule of partition `other`: half an hour of a site."""
CONF_LINES = '[users]\nhosts = "ctl"\n[guard]\nmetrics = "/run/berth/guard.prom"'
NODE_TIMES = {
    "prolog_epilog.looks.watch": {"PERIOD": 15.0 / SCALE},
    "prolog_epilog.looks.gpu_use": {"TOLD_EVERY": 60.0 / SCALE},
    "prolog_epilog.looks.still": {
        "_FLOOR_S, _FLOOR_BLIND_S": (600.0 / SCALE, 1_800.0 / SCALE),
        "_AGAIN_S": 60.0 / SCALE,
        "_BYTES": round((1 << 20) / SCALE),
    },
    "prolog_epilog.guard.seats.step_times": {
        "REPORT_S": 3_600.0 / HOUR_SCALE,
        "_SPREAD_S": 1,
        "_LEAST_S, _LEAST_STEPS": (1.0, 20),
    },
}
BERTHD_TIMES = {
    "policy.daemon.hear.gpu_use": {"FREE_START": 600.0 / SCALE, "IDLE_AFTER": 600.0 / SCALE},
    "policy.daemon.hear.step_times": {"_TOGETHER_S": 1.0},
}
# Gives constants of installed modules other values; the files as they were lie beside them.
SET_TIMES = """
import importlib.util, json, re, shutil, sys
for module, values in json.load(sys.stdin).items():
    path = importlib.util.find_spec(module).origin
    shutil.copy2(path, f"{path}.kept")
    text = open(path).read()
    for name, value in values.items():
        value = ", ".join(map(str, value)) if isinstance(value, list) else value
        text, count = re.subn(f"(?m)^{re.escape(name)} = .*$", f"{name} = {value}", text)
        assert count == 1, (path, name)
    open(path, "w").write(text)
"""
RESTORE = """
for kept in $(find /opt/berth -name '*.py.kept'); do mv "$kept" "${kept%.kept}"; done
"""
# A rank of a training job. It beats as PyTorch's hooks do, together with the others, and stands still in all of its
# threads from a moment on, for so many seconds.
RANK = """
import os, sys, time
from pathlib import Path
from prolog_epilog.injob.job import Job, words_of
from prolog_epilog.injob.word import MOVED
words = words_of(os.environ["BERTH_WORD"])
rank = int(os.environ.get("SLURM_LOCALID", "0"))
job, slow = Job(words, rank, ranks=int(os.environ["SLURM_NTASKS"])), float(sys.argv[1])
assert job.ready(), job.why
job.place.numbers[MOVED] = 1
print("RANK", os.uname().nodename, rank, words[rank].name, os.getpid(), flush=True)
begin, hang = (Path(sys.argv[2], name + os.environ["SLURM_JOB_ID"]) for name in ("begin.", "hang."))
if os.environ["SLURM_PROCID"] == "0":
    Path(f"{begin}.new").write_text(str(time.time() + 0.5))
    Path(f"{begin}.new").rename(begin)
while not begin.exists():
    time.sleep(0.05)
due = float(begin.read_text())
while True:
    due += 0.1
    time.sleep(max(0.0, due - time.time()))
    if hang.exists():
        at, seconds = map(float, hang.read_text().split())
        if due >= at:
            time.sleep(seconds)
            hang.unlink(missing_ok=True)
    job.step(0.1, own=0.06 * (slow if rank == 1 else 1.0))
"""

_rows: list[dict[str, str | float]] = []


class Ranks(NamedTuple):
    """A job of several ranks."""

    job: int
    gpus: Mapping[tuple[str, int], int]
    """Position by node and rank there."""


@contextmanager
def other_times(target: Container, times: Mapping[str, Any]) -> Iterator[None]:
    target.run([PYTHON, "-c", SET_TIMES], user="root", stdin=json.dumps(times))
    try:
        yield
    finally:
        target.bash(RESTORE, user="root")


@pytest.fixture(scope="module")
def quick(slurm: Slurm) -> Iterator[Slurm]:
    """A cluster that looks forty times as often, and gives up as much sooner."""
    nodes = nodes_of(slurm)
    assert isinstance(slurm.target, Container)
    _rows.clear()
    slurm.target.bash(
        f"rm -rf {FOLDER}; install -d -m 777 {FOLDER}; install -d -o slurm -g slurm {FOLDER}/record", user="root"
    )
    slurm.target.run(["tee", f"{FOLDER}/rank.py"], user="root", stdin=RANK)
    with ExitStack() as stack:
        for name in HERE:
            stack.callback(nodes[name].bash, f"rm -f {MACHINE}.live; svc berth-guard restart")
            stack.enter_context(other_times(nodes[name].target, NODE_TIMES))
        # berthd begins anew with its own times once these are restored, too.
        stack.callback(slurm.target.run, ["svc", "berthd", "restart"], user="root")
        stack.enter_context(other_times(slurm.target, BERTHD_TIMES))
        stack.enter_context(berth_conf(slurm, CONF_LINES))
        keys = rf'steps = "{FOLDER}/record/steps"\nend_idle = "other@{LIMIT}"'
        slurm.target.bash(rf"sed -i 's|^\[berthd\]$|&\n{keys}|' {CONF}", user="root")
        slurm.target.run(["svc", "berthd", "restart"], user="root")
        slurm.berthd("start")
        yield slurm
    BUILD.mkdir(exist_ok=True)
    (BUILD / f"looks-rows-{slurm.name}.json").write_text(json.dumps(_rows, indent=1) + "\n", encoding="utf-8")


@pytest.fixture
def nodes(quick: Slurm) -> Iterator[dict[str, Node]]:
    found = {name: nodes_of(quick)[name] for name in HERE}
    for node in found.values():
        node.bash(f"rm -f {MACHINE}.live; echo 'gpu 0-7 util=0' >{MACHINE}.live; svc berth-guard restart")
    yield found
    quick.clear()


def ranks(slurm: Slurm, nodes: Mapping[str, Node], count: int, *names: str, slow: float = 1.0) -> Ranks:
    """A job with a rank on each of so many GPUs of these nodes, all of which run kernels."""
    job = slurm.submit(
        *("--gpu-tier=guaranteed", "--gpu-mem=1G", f"-N{len(names)}", "-w", ",".join(names), "-t", "10"),
        *(f"--ntasks-per-node={count}", f"--gpus-per-node={count}", "--mem=200", "--app-class=compute"),
        body=f"exec srun {PYTHON} {FOLDER}/rank.py {slow} {FOLDER}",
    )

    def begun() -> list[list[str]] | None:
        found = [line.split()[1:] for line in output(slurm, job).splitlines() if line.startswith("RANK ")]
        return found if len(found) == count * len(names) else None

    gpus = {}
    for host, rank, uuid, pid in until(f"the ranks of job {job} to begin", begun):
        name = host.rpartition("-")[2]
        gpu = next(gpu.position for gpu in slurm.machines[name].gpus if gpu.uuid.lower() == uuid.lower())
        gpus[name, int(rank)] = gpu
        nodes[name].bash(
            f"echo 'process {gpu} {pid} type=compute memory=500 real=1' >>{MACHINE}.live;"
            f"echo 'gpu {gpu} util=99' >>{MACHINE}.live"
        )
    return Ranks(job, gpus)


def why(slurm: Slurm, job: int) -> dict[str, Any]:
    """Returns what the job's user reads in `berth why`."""
    found: dict[str, Any] = json.loads(slurm.target.run(["berth", "why", str(job), "--json"], user="alice").out)
    return found


def told(slurm: Slurm, job: int, key: str, seconds: float = 90.0) -> str:
    text: str = until(f"{key} of job {job} to be told", lambda: why(slurm, job)[key], seconds)
    return text


def measured(what: str, seconds: float, law: str, law_s: float) -> None:
    """Keeps a row: what the law waits for by itself, at a site's times and here, and how soon it was told."""
    print(f"{what}: {seconds:.1f} s here, of which {law_s:.1f} by the law")
    _rows.append({"what": what, "law": law, "law_s": law_s, "told_s": round(seconds, 1)})


def test_gpus_without_a_process_and_without_a_kernel_are_told(quick: Slurm, nodes: dict[str, Node]) -> None:
    works = ranks(quick, nodes, 1, "n4")
    began = time.monotonic()
    empty = quick.submit("--gpus=2", "-w", "n4", "-n1", "--mem=10", body="exec sleep 600")
    waits = quick.submit("--gpus=1", "-w", "n4", "-n1", "--mem=10", body="echo PID $$; exec sleep 600")
    runs_a_process(quick, nodes, waits)

    assert told(quick, empty, "idle").startswith("2 of its 2 GPUs have run no kernel for")
    took = time.monotonic() - began
    assert told(quick, waits, "idle").startswith("1 of its 1 GPUs")
    listed = json.loads(quick.target.run(["berth", "nodes", "--json"], user="root").out)
    cells = {one["job"]: one for one in listed["idle"] if one["node"] == "n4"}
    assert cells[empty]["no_process"]
    assert cells[waits]["no_process"] is None
    assert cells[waits]["memory_mib"] >= 700
    assert why(quick, works.job)["idle"] is None
    measured("two GPUs without a process", took, "10 min from the job's start", 600.0 / SCALE)


def runs_a_process(slurm: Slurm, nodes: Mapping[str, Node], job: int, kind: str = "compute") -> None:
    """Gives the job's own shell to the driver as a process on the job's GPU of n4."""
    pid = until("the process", lambda: re.findall(r"PID (\d+)", output(slurm, job)))[0]
    gpu = segment_of(slurm, job)["gpus"]
    nodes["n4"].bash(f"echo 'process {gpu} {pid} type={kind} memory=700 real=1' >>{MACHINE}.live")


def test_of_two_jobs_on_a_gpu_that_works_the_one_without_a_process_is_told(
    quick: Slurm, nodes: dict[str, Node]
) -> None:
    quick.hold_gpus("n4", range(1, 8))
    waits, works = (
        quick.submit("--gpu-share=30", "-w", "n4", "-n1", "--mem=10", body="echo PID $$; exec sleep 600")
        for _ in range(2)
    )
    runs_a_process(quick, nodes, works, "mps")
    nodes["n4"].bash(f"echo 'gpu 0 util=99' >>{MACHINE}.live")
    assert segment_of(quick, waits)["gpus"] == segment_of(quick, works)["gpus"] == "0"

    assert told(quick, waits, "idle").startswith("1 of its 1 GPUs")
    assert why(quick, works)["idle"] is None
    # Once the GPU runs no kernel, its other job idles too.
    nodes["n4"].bash(f"echo 'gpu 0 util=0' >>{MACHINE}.live")
    assert told(quick, works, "idle").startswith("1 of its 1 GPUs")


def test_an_idle_host_has_a_guest_and_each_is_told_of_by_itself(quick: Slurm, nodes: dict[str, Node]) -> None:
    for name in quick.machines.keys() - {"n4"}:
        quick.hold_gpus(name, range(8))
    quick.hold_gpus("n4", range(1, 8))
    options = ("--gpu-tier=guaranteed", "--gpu-mem=1G", "--gpus=1", "-w", "n4", "-n1", "--mem=10")
    host = quick.submit(*options, body="exec sleep 600")
    told(quick, host, "idle")
    guest = quick.submit("--gpu-tier=opportunistic", "--gpus=1", "--mem=10", body="echo PID $$; exec sleep 600")
    quick.wait_state(guest, {"RUNNING"})
    runs_a_process(quick, nodes, guest)
    nodes["n4"].bash(f"echo 'gpu 0 util=99' >>{MACHINE}.live")

    assert segment_of(quick, guest)["gpus"] == segment_of(quick, host)["gpus"] == "0"
    # The guest began after its host, which is told of all the time.
    until("the host's notice with a guest beside it", lambda: why(quick, host)["idle"] or None)
    quick.passes()
    assert why(quick, guest)["idle"] is None


def test_a_rule_ends_idle_jobs_after_each_was_told_twice(quick: Slurm, nodes: dict[str, Node]) -> None:
    options = ("--gpus=1", "-w", "n4", "-n1", "--mem=10")
    spared = quick.submit(*options, body="exec sleep 600")
    began = time.monotonic()
    tasks = [quick.submit("-p", "other", "-a", "3", *options, body="exec sleep 600")]
    script = " ".join(["salloc", "-p", "other", *options, "-t", "10", "sleep", "600"])
    quick.target.bash(f"nohup {script} >{FOLDER}/salloc.out 2>&1 </dev/null &", user="alice")
    queue = ["squeue", "-h", "-u", "alice", "-n", "interactive", "-o", "%A"]
    tasks.append(int(until("salloc's job", lambda: quick.target.run(queue, user="root").out)))

    def says(job: int) -> str:
        return str(segment_of(quick, job).get("idle_told", "")).partition(",")[0]

    until("both to be told", lambda: all(says(job) >= "1" for job in tasks) or None)
    # berthd forgets nothing, and its nodes say it again.
    quick.target.run(["svc", "berthd", "restart"], user="root")
    quick.berthd("start")
    text = quick.target.run(["berth", "why", str(tasks[1])], user="alice").out
    assert "a rule of partition other" in text, text
    until("both to be told again", lambda: all(says(job) >= "2" for job in tasks) or None, 120.0)
    for job in tasks:
        quick.wait_state(job, {"CANCELLED"})
    took = time.monotonic() - began

    assert "its GPUs ran no kernel for" in quick.target.run(["berth", "why", str(tasks[0])], user="alice").out
    assert "has been revoked" in quick.target.bash(f"cat {FOLDER}/salloc.out", user="root").out
    assert (quick.state(spared), says(spared)) == ("RUNNING", "")
    assert why(quick, spared)["idle"].startswith("1 of its 1 GPUs")
    measured("an idle job is ended by a rule of 30 min", took, "10 and 30 min from its start", 2_400.0 / SCALE)


def test_a_job_whose_rank_is_stuck_is_told_with_the_rank(quick: Slurm, nodes: dict[str, Node]) -> None:
    job, gpus = ranks(quick, nodes, 2, "n1", "n4")
    stalls, _ = ranks(quick, nodes, 1, "n4")
    time.sleep(5.0)
    # The data of the one stall for half of what is allowed, and all of its signs of life with them.
    quick.target.bash(
        f"at=$(date -d '+2 seconds' +%s); echo $at {300.0 / SCALE} >{FOLDER}/hang.{stalls};"
        f"echo $at 1e6 >{FOLDER}/hang.{job}",
        user="root",
    )
    began = time.monotonic() + 2.0
    stuck = gpus["n1", 0]
    nodes["n1"].bash(f"echo 'gpu {stuck} util=0' >>{MACHINE}.live")

    text = told(quick, job, "hangs")
    took = time.monotonic() - began
    assert text.endswith(f"n1:{stuck} runs no kernel while the others wait"), text
    assert why(quick, stalls)["hangs"] is None
    listed = json.loads(quick.target.run(["berth", "queue", "--json"], user="root").out)
    assert [one["id"] for one in listed["jobs"] if "hangs" in one] == [job]
    measured("a rank of a job of two nodes is stuck", took, "10 min without a sign of life", 600.0 / SCALE)


def test_a_rank_that_is_slow_is_told_while_it_runs(quick: Slurm, nodes: dict[str, Node]) -> None:
    uuids = {gpu.position: gpu.uuid for gpu in quick.machines["n4"].gpus}
    began = time.monotonic()
    job, gpus = ranks(quick, nodes, 4, "n4", slow=1.5)
    even, _ = ranks(quick, nodes, 4, "n4")
    gpu = gpus["n4", 1]
    # An earlier job of another user found the GPU slow, too.
    times = tuple(Rank("n4", position, uuids[position], 130.0 if position == gpu else 100.0, 400) for position in uuids)
    report = JobReport("1", "7-a", "compute", "2026-11-01T00:00:00Z", times)
    lines = f'{{"format": "{FORMAT}"}}\n{encode(report)}\n'
    quick.target.run(["tee", f"{FOLDER}/record/steps"], user="slurm", stdin=lines)

    told(quick, job, "slow")
    took = time.monotonic() - began
    # An hour may have ended before the earlier job's line was there.
    text = until(
        "the earlier job to count", lambda: one if "other runs too" in (one := why(quick, job)["slow"]) else None
    )
    assert f"the rank on n4:{gpu} needs 1.50 times as long as the others" in text, text
    assert "its GPU takes 30% more time in other runs too (the hardware is to blame)" in text, text
    written = f"cat {FOLDER}/record/steps"
    until("the other job's line", lambda: f'"job":"{even}"' in quick.target.bash(written, user="slurm").out or None)
    quick.passes()
    assert why(quick, even)["slow"] is None
    measured("a rank needs 1.5 times as long", took, "the next full hour", 3_600.0 / HOUR_SCALE)
