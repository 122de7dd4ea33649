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
from policy.simulate.with_berthd.jobs import SimulatedJob
from policy.simulate.with_berthd.nodes import Nodes
from policy.simulate.with_berthd.passes import ClusterPasses
from policy.simulate.with_berthd.run import PinnedSettings, Submission

from ..table import Figure
from .figures import PLAIN
from .outcome import Outcome, Run
from .simulated import fleet_of, ground_of, shape_of, submission
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
            asked = {job.name: submission(job, ground.topology) for job in draw(run.seed, shape_of(run))}
            found += agreement(run, folder(run), fleet_of(ground), asked)
    if not found.starts:
        return []
    return [
        Figure("sim_same_passes", found.same / found.passes, ""),
        Figure("sim_same_nodes", found.same_nodes / found.starts, ""),
    ]


def agreement(run: Run, folder: Path, fleet: Fleet, asked: dict[str, Submission]) -> Agreement:
    """Go through the log of one run."""
    ledger = _Ledger(run, folder, fleet, asked)
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

    def __init__(self, run: Run, folder: Path, fleet: Fleet, asked: dict[str, Submission]) -> None:
        self._fleet = fleet
        self._outcomes: dict[int, Outcome] = {}
        self._records: dict[int, SimulatedJob] = {}
        self._waiting: dict[int, SimulatedJob] = {}
        self._running: dict[int, SimulatedJob] = {}
        self._settings = PinnedSettings(berthd=False, kill=False, slurm=run.slurm)
        outcomes = {one.name: one for one in run.outcomes}
        for name, number in _submitted(folder / "submit.log"):
            submission = asked[name]
            wide = submission.job.nodes or 1
            self._outcomes[number] = outcomes[name]
            self._records[number] = SimulatedJob(number, submission, wide, submission.job.gpus // wide, name)

    def happens(self, kind: str, places: Places) -> None:
        """One line, or one pass, of the log."""
        for job, nodes in places.items():
            if kind == "came":
                self._waiting[job] = self._records[job]
            elif kind == "ended":
                self._running.pop(job, None)
            else:
                record = self._running[job] = self._waiting.pop(job)
                mask = sum(1 << gpu for gpu in self._outcomes[job].gpus)
                record.nodes, record.masks = nodes, (mask,) * len(nodes)
                record.started = int(self._outcomes[job].started)

    def compare(self, really: Places) -> Agreement:
        """Make a pass of backfill on paper."""
        nodes, on_paper = self._nodes(), dict[int, tuple[int, ...]]()
        waiting, running = dict(self._waiting), dict(self._running)
        now = min(self._outcomes[job].started for job in really)

        def start(record: SimulatedJob, at: tuple[int, ...], masks: tuple[int, ...]) -> None:
            on_paper[record.id] = at
            record.nodes, record.masks, record.started = at, masks, now
            nodes.take(record)

        ClusterPasses(nodes, self._settings, start).backfill(list(waiting.values()), list(running.values()), now)
        both = really.keys() & on_paper.keys()
        same_nodes = sum(really[job] == on_paper[job] for job in both)
        return Agreement(1, int(really.keys() == on_paper.keys()), len(both), same_nodes)

    def _nodes(self) -> Nodes:
        nodes = Nodes(self._fleet)
        for record in self._running.values():
            nodes.take(record)
        return nodes


def _submitted(log: Path) -> Iterator[tuple[str, int]]:
    for line in log.read_text(encoding="utf-8").splitlines():
        words = line.split("\t")
        if len(words) > 3:
            yield words[0], int(words[1])
