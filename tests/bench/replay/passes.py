# SPDX-License-Identifier: Apache-2.0
"""Is the simulator's backfill Slurm's? Each pass of a real run, made again on paper from the state that it found.

Up to 24.11 slurmctld's log says what each pass started and where; 26.05's does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy.cluster.fleet import Fleet
from policy.formats import hostlist
from policy.placement.base import Berth
from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.nodes.tree_choice import berth_of
from policy.simulate.slurm.passes import QueuePasses
from policy.simulate.slurm.queue.jobs import Task, Tasks
from policy.simulate.slurm.queue.priority import Queue
from policy.simulate.slurm.queue.running import RunningJobs
from policy.simulate.slurm.queue.waits import WaitClocks
from policy.simulate.slurm.settings import Delays, LocalityRule, SlurmSettings

from ..table import Figure
from .figures import PLAIN
from .outcome import Outcome, Run
from .simulated import DEPTH, as_traced, fleet_of, ground_of, leaf_wait, shape_of
from .workload import draw

Places = dict[int, tuple[int, ...]]
"""Nodes by job."""

LINES = {
    "came": re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)()"),
    "ended": re.compile(r"_job_complete: JobId=(\d+) done()"),
    "main": re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)"),
    "backfill": re.compile(r"sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (\S+)"),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Passes in which something really started, and starts that came on paper too."""

    passes: int = 0
    same: int = 0
    """Of the passes: those that started the same jobs."""
    starts: int = 0
    same_nodes: int = 0
    """Of the starts: those on the same nodes."""

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.passes + other.passes,
            self.same + other.same,
            self.starts + other.starts,
            self.same_nodes + other.same_nodes,
        )


def pass_figures(runs: Sequence[Run], folder: Callable[[Run], Path]) -> list[Figure]:
    """How often backfill on paper does what plain Slurm did; none where no log tells what it did."""
    found = Agreement()
    for run in runs:
        if run.system == PLAIN:
            ground = ground_of(run)
            jobs = draw(run.seed, shape_of(run))
            asked = {job.name: as_traced(job) for job in jobs}
            leaf = {job.name: wait for job in jobs if (wait := leaf_wait(job, ground.topology))}
            found += agreement(run, folder(run), fleet_of(ground), asked, leaf)
    if not found.starts:
        return []
    return [
        Figure("sim_same_passes", found.same / found.passes, ""),
        Figure("sim_same_nodes", found.same_nodes / found.starts, ""),
    ]


def agreement(run: Run, folder: Path, fleet: Fleet, asked: dict[str, TraceJob], leaf: dict[str, int]) -> Agreement:
    """Go through the log of one run; `leaf` has the seconds for which jobs wait for one leaf."""
    ledger = _Ledger(run, folder, fleet, asked, leaf)
    found = Agreement()
    for kind, places in _events(folder / "slurmctld.log"):
        if kind == "backfill":
            found += ledger.compare(places)
        ledger.happens(kind, places)
    return found


def _events(log: Path) -> Iterator[tuple[str, Places]]:
    """What the log tells; the jobs that one pass of backfill started come together."""
    one_pass: Places = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        for kind, pattern in LINES.items():
            if not (match := pattern.search(line)):
                continue
            job, nodes = int(match[1]), tuple(int(name[1:]) - 1 for name in hostlist.expand(match[2]))
            # Jobs of equal priority are tried in the order of their numbers.
            if one_pass and (kind != "backfill" or job < max(one_pass)):
                yield "backfill", one_pass
                one_pass = {}
            if kind == "backfill":
                one_pass[job] = nodes
            else:
                yield kind, {job: nodes}
    if one_pass:
        yield "backfill", one_pass


class _Ledger:
    """Jobs and nodes as slurmctld had them."""

    def __init__(self, run: Run, folder: Path, fleet: Fleet, asked: dict[str, TraceJob], leaf: dict[str, int]) -> None:
        self._fleet = fleet
        self._outcomes: dict[int, Outcome] = {}
        self._tasks: dict[int, Task] = {}
        self._waiting: dict[int, Task] = {}
        self._running: dict[int, tuple[int, ...]] = {}
        self._settings = SlurmSettings(
            delays=Delays(launch=0),
            kill=False,
            slurm=run.slurm,
            bf_max_job_test=DEPTH,
            localities={name: LocalityRule("leaf", wait) for name, wait in leaf.items()},
        )
        made = Tasks(fleet, self._settings)
        outcomes = {one.name: one for one in run.outcomes}
        for name, number in _submitted(folder / "submit.log"):
            self._outcomes[number] = outcomes[name]
            self._tasks[number] = made.of(number, asked[name])

    def happens(self, kind: str, places: Places) -> None:
        """One line, or one pass, of the log."""
        for job, nodes in places.items():
            if kind == "came":
                self._waiting[job] = self._tasks[job]
            elif kind == "ended":
                self._running.pop(job, None)
            else:
                self._waiting.pop(job)
                self._running[job] = nodes

    def compare(self, really: Places) -> Agreement:
        """Make a pass of backfill on paper."""
        ledger, on_paper = Ledger(self._fleet), dict[int, tuple[int, ...]]()
        jobs = RunningJobs(ledger, self._settings, lambda *_: None)
        queue, waits = Queue(self._settings.order), WaitClocks(ledger, {}, {})
        now = min(self._outcomes[job].started for job in really)

        def start(task: Task, berth: Berth, now: float) -> None:
            on_paper[task.index] = berth.nodes
            queue.remove(task)
            jobs.start(task, berth, now)

        passes = QueuePasses(queue, jobs, waits, SlurmPolicy(), self._settings, start)
        for job, nodes in self._running.items():
            task, mask = self._tasks[job], sum(1 << gpu for gpu in self._outcomes[job].gpus)
            berth = berth_of(task.demand, passes.view(), nodes, (mask,) * len(nodes), "")
            jobs.start(task, berth, int(self._outcomes[job].started))
        for task in self._waiting.values():
            queue.add(task, now)
        passes.backfill(now)
        both = really.keys() & on_paper.keys()
        same_nodes = sum(really[job] == on_paper[job] for job in both)
        return Agreement(1, int(really.keys() == on_paper.keys()), len(both), same_nodes)


def _submitted(log: Path) -> Iterator[tuple[str, int]]:
    for line in log.read_text(encoding="utf-8").splitlines():
        words = line.split("\t")
        if len(words) > 3:
            yield words[0], int(words[1])
