# SPDX-License-Identifier: Apache-2.0
"""Jobs of many kinds on a plain cluster and on a mixed one, and how much later jobs start because of a step.

`make test-hard`. The same drawn jobs run before Berth came and while two of four nodes have the exact layout: none may
be lost, refused, killed or run twice. Beside each step of `berth migrate`, and beside plain restarts of slurmctld in
the same run, a user submits a small job each second. The figures come to build/hard/ladder-VERSION.json.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import pytest

from tests.slurm.harness import until

from .test_migrate import Site, plain_site
from .test_models_counted import RESTART

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
JOBS = int(os.environ.get("BERTH_LADDER_JOBS", "500"))
OUT = Path(__file__).resolve().parents[2] / "build" / "hard"
pytestmark = [pytest.mark.hard, pytest.mark.timeout(7200)]

HELD_BACK = 10
"""Seconds for which a job's GPUs have to be free on one node, while it waits, to count it as held back."""
ALL = ("n1", "n2", "n3", "n4")
MODELS = dict(zip(ALL, ("v100", "h100", "a6000", "l40s"), strict=True))
HOLDS = 8


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job to be submitted: its words, its GPUs on one node, and the nodes that can hold it."""

    words: str
    gpus: int
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Came:
    """What came of all jobs of a kind of cluster."""

    refused: list[str] = field(default_factory=list)
    lost: int = 0
    restarted: int = 0
    failed: list[str] = field(default_factory=list)
    held_back: int = 0
    waits: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> dict[str, object]:
        waits = sorted(self.waits)
        shown = {"tasks": len(waits), "wait_median_s": median(waits), "wait_p99_s": waits[int(len(waits) * 0.99)]}
        counts = {"refused": len(self.refused), "lost": self.lost, "restarted": self.restarted}
        more = {"failed": len(self.failed), "held_back": self.held_back, "all_ended_s": round(self.seconds)}
        return {**shown, "wait_max_s": waits[-1], **counts, **more}


def drawn(count: int, seed: int) -> list[Drawn]:
    """Draws jobs with and without a model, by node, by job and by task, arrays, gangs, and such without GPUs."""
    draw = random.Random(seed)
    jobs = []
    for _ in range(count):
        number, node = draw.choice((1, 1, 2, 2, 4, 8)), draw.choice(ALL)
        model, seconds = MODELS[node], draw.choice((1, 2, 3))
        small = min(number, 2)
        words, gpus, nodes = draw.choice(
            (
                (f"--gres=gpu:{model}:{number}", number, (node,)),
                (f"--gpus={model}:{number} -N1", number, (node,)),
                (f"--gpus-per-node={model}:{number}", number, (node,)),
                (f"--gres=gpu:{number}", number, ALL),
                (f"--gpus={number} -N1", number, ALL),
                (f"--gres=gpu:{number} -w {node}", number, (node,)),
                (f"--gpus-per-task={small} -n2 -N1", 2 * small, ALL),
                (f"--gres=gpu:{small} -N2", 0, ALL),
                (f"--gres=gpu:{model}:1 -a 0-1", 1, (node,)),
                ("-n2", 0, ALL),
            )
        )
        jobs.append(Drawn(f"{words} --wrap 'sleep {seconds}'", gpus, nodes))
    return jobs


def play(site: Site, jobs: list[Drawn]) -> Came:
    """Submits the jobs one after the other, waits for all to end, and looks at what accounting says of them."""
    lines = "\n".join(
        f"sbatch --parsable -o /dev/null -t 5 --mem=50 {job.words} 2>&1 | tr '\\n' ' '; echo; sleep 0.05"
        for job in jobs
    )
    began = time.monotonic()
    said = site.controller.run(["bash", "-c", lines], timeout=1800).out.splitlines()
    came = Came()
    asked = {}
    for job, line in zip(jobs, said, strict=True):
        answer = line.split()
        if answer and answer[-1].isdecimal():
            asked[answer[-1]] = job
        else:
            came.refused.append(f"{job.words}: {line}")
    until("all jobs to end", lambda: not site.root("squeue -h").strip(), 1800, 1.0)
    came.seconds = time.monotonic() - began
    time.sleep(3)
    fields = "JobID,State,Restarts,ExitCode,Submit,Start,End,NodeList,AllocTRES"
    script = f"SLURM_TIME_FORMAT=%s sacct -nPXDa -j {','.join(asked)} -o {fields}"
    records = [line.split("|") for line in site.root(script).splitlines()]
    numbers = {record[0].partition("_")[0] for record in records}
    came.lost = len(asked.keys() - numbers)
    came.restarted = sum(record[2] != "0" for record in records) + len(records) - len({one[0] for one in records})
    came.failed = [" ".join(one[:4]) for one in records if (one[1], one[3]) != ("COMPLETED", "0:0")]
    came.waits = [int(one[5]) - int(one[4]) for one in records if one[5].isdecimal()]
    came.held_back = held_back(records, asked)
    return came


def held_back(records: list[list[str]], asked: dict[str, Drawn]) -> int:
    """Counts jobs that waited while one node that can hold them had their GPUs free for HELD_BACK seconds on end."""
    runs = [(one[7], int(one[5]), int(one[6]), gpus_of(one[8])) for one in records if one[5].isdecimal()]
    first, last = min(run[1] for run in runs), max(run[2] for run in runs)
    free = {node: [HOLDS] * (last - first + 1) for node in ALL}
    for nodes, start, end, gpus in runs:
        for node in ALL if "-" in nodes or "," in nodes else (nodes,):
            # Gangs hold theirs on two nodes: taking them from all that the list may name counts too few, not too many.
            for second in range(start - first, end - first + 1):
                free[node][second] -= gpus
    count = 0
    for one in records:
        job = asked[one[0].partition("_")[0]]
        if not job.gpus or not one[5].isdecimal():
            continue
        waited = range(max(int(one[4]) - first, 0), int(one[5]) - first)
        count += any(longest(free[node], waited, job.gpus) >= HELD_BACK for node in job.nodes)
    return count


def longest(free: list[int], seconds: range, gpus: int) -> int:
    """Returns how long, on end, so many GPUs are free."""
    best = now = 0
    for second in seconds:
        now = now + 1 if free[second] >= gpus else 0
        best = max(best, now)
    return best


def gpus_of(tres: str) -> int:
    found = dict(word.partition("=")[::2] for word in tres.split(","))
    return int(found.get("gres/gpu", "0"))


class Probes:
    """A user who submits a job of one GPU each second, and again while slurmctld is away."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls: list[tuple[float, str]] = []
        self.windows: list[tuple[str, float, float]] = []
        self.failed: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._submit, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _submit(self, stop: threading.Event) -> None:
        words = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "1", "--mem=50", "--gres=gpu:1", "--wrap", "true"]
        while not stop.is_set():
            called = time.time()
            while (answer := self.site.controller.run(words, check=False)).rc and not stop.is_set():
                time.sleep(0.1)
            if answer.rc == 0:
                self.calls.append((called, answer.out.strip()))
            stop.wait(1.0)

    def watch(self, name: str, step: Callable[[], object]) -> None:
        """Takes a step with some seconds of quiet before and behind it."""
        time.sleep(5)
        began = time.time()
        step()
        time.sleep(5)
        self.windows.append((name, began, time.time()))

    def delays(self) -> list[dict[str, object]]:
        """Returns for each step the longest and the median time from a call of sbatch to the start of the job."""
        until("the probes to end", lambda: not self.site.root("squeue -h").strip(), 600, 1.0)
        time.sleep(3)
        numbers = ",".join(job for _, job in self.calls)
        script = f"SLURM_TIME_FORMAT=%s sacct -nPXDa -j {numbers} -o JobID,Start,State,End,NodeList,Restarts"
        started = {}
        for line in self.site.root(script).splitlines():
            job, start, state, *_ = line.split("|")
            started[job] = int(start)
            if state != "COMPLETED":
                self.failed.append(line)
        rows: list[dict[str, object]] = []
        for name, began, ended in self.windows:
            # Slurm's times are whole seconds: a start is told up to one second too early.
            took = [max(started[job] - called, 0.0) for called, job in self.calls if began - 2 <= called <= ended]
            longest_s, middle = round(max(took), 1), round(median(took), 1)
            rows.append({"step": name, "longest_s": longest_s, "median_s": middle, "jobs": len(took)})
        return rows


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from plain_site(request.param)


def test_a_mixed_cluster_runs_what_a_plain_one_runs_and_steps_delay_as_restarts_do(
    site: Site, request: pytest.FixtureRequest
) -> None:
    jobs = drawn(JOBS, seed=36)
    came: dict[str, Came] = {"plain": play(site, jobs)}
    probes = Probes(site)

    with probes.running():
        for number in (1, 2, 3):
            probes.watch(f"slurmctld restarted, {number}", lambda: site.root(RESTART))
        site.submit(20)
        probes.watch("advise", lambda: site.up("advise"))
        site.submit(20)
        probes.watch("exact, n1 and n2", lambda: site.up("exact", "n[1-2]"))
    came["mixed"] = play(site, jobs)
    with probes.running():
        site.submit(20)
        probes.watch("exact, all", lambda: site.up("exact"))
        site.submit(20)
        probes.watch("sharing", lambda: site.up("sharing"))
        for rung in ("exact", "exact on n1 and n2", "advise", "observe"):
            site.submit(20)
            probes.watch(f"back to {rung}", site.back)
    delays = probes.delays()
    OUT.mkdir(parents=True, exist_ok=True)
    found = {"jobs": JOBS, "came": {name: one.row() for name, one in came.items()}, "delays": delays}
    details = {name: asdict(one) for name, one in came.items()} | {"windows": probes.windows, "failed": probes.failed}
    name = f"ladder-{request.node.callspec.params['site']}.json"
    (OUT / name).write_text(json.dumps(found | {"details": details}, indent=1))
    print(json.dumps(found, indent=1))

    assert probes.failed == []
    for one in came.values():
        assert (one.refused, one.lost, one.restarted, one.failed) == ([], 0, 0, [])
    assert came["mixed"].held_back <= came["plain"].held_back
    assert site.no_node_is_invalid()


def test_a_job_counts_as_held_back_only_where_one_node_had_its_gpus_free() -> None:
    asked = {"1": Drawn("", 8, ("n1",)), "2": Drawn("", 2, ("n1",)), "3": Drawn("", 2, ("n1", "n2"))}

    def record(job: str, submit: int, start: int, end: int, gpus: int) -> list[str]:
        return [job, "COMPLETED", "0", "0:0", str(submit), str(start), str(end), "n1", f"cpu=1,gres/gpu={gpus}"]

    busy = record("1", 0, 0, 50, 8)
    assert held_back([busy, record("2", 5, 51, 60, 2)], asked) == 0
    assert held_back([busy, record("2", 5, 55 + HELD_BACK, 80, 2)], asked) == 1
    assert held_back([busy, record("3", 5, 51, 60, 2)], asked) == 1, "n2 was free all the time"
