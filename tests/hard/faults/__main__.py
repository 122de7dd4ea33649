"""`make campaign`: seeded faults on the real test cluster while jobs of every kind run, and invariants after each."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from containers import cluster as clusters
from tests.bench.table import machine
from tests.hard.faults.invariants import Watch, records
from tests.hard.faults.jobs import FOLDER, submit
from tests.hard.faults.kinds import Faults
from tests.slurm.harness import ENDED, Slurm
from tests.slurm.target import Container

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "containers" / "cluster.py"
FOLDER_OF_REPORTS = ROOT / "build" / "campaign"
IN_THE_QUEUE = 24
AT_ONCE = 6
BACK_WITHIN = 120.0
END_WITHIN = 420.0

# What an admin does after a fault: nodes that Slurm has closed, jobs that it holds, the two minutes of a requeue.
ADMIN = """
sinfo -h -N -t drain,drained,down -o %N | sort -u | while read n; do scontrol update NodeName=$n State=RESUME; done
squeue -h -t PD -o '%A %r' | while read j r; do
    case $r in
    *launch*) scontrol release $j ;;
    BeginTime) scontrol show job $j | grep -q 'Restarts=0' || scontrol update JobId=$j StartTime=now ;;
    esac
done 2>/dev/null
true
"""


@dataclass(slots=True)
class Strike:
    """One fault, and what came of it."""

    at_s: float
    fault: str
    node: str
    lasted_s: float
    back_s: float
    """Seconds from its undoing until berthd answered, all nodes were open and the planner had a new picture."""
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CampaignReport:
    """Holds the report of a campaign."""

    slurm: str
    seed: int
    date: str
    machine: str
    seconds: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    jobs: int = 0
    untaken: int = 0
    """Submissions that failed, as with plain Slurm, while slurmctld was away."""
    ends: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """By kind, Slurm's reason and exit code; of one kind it is the script's own doing."""
    closed_by_slurm: dict[str, int] = field(default_factory=dict)
    held_by_slurm: int = 0
    forgotten_by_slurm: int = 0
    """Jobs that a killed slurmctld forgot, or their start, as it says itself."""
    checks: int = 0
    left: list[str] = field(default_factory=list)
    rss_kb: list[int] = field(default_factory=list)
    """Memory of berthd's processes, at the beginning and at the end."""

    @property
    def wrong(self) -> list[str]:
        return [one for strike in self.strikes for one in strike.wrong] + self.left


def say(text: str) -> None:
    sys.stdout.write(f"campaign: {text}\n")
    sys.stdout.flush()


class Campaign:
    """One run on one cluster."""

    def __init__(self, slurm: Slurm, seed: int, seconds: float, *, accounting: bool) -> None:
        self.slurm, self.dice, self.seconds = slurm, random.Random(seed), seconds
        self.faults = Faults(slurm, self.dice, accounting=accounting)
        self.watch = Watch(slurm)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.report = CampaignReport(slurm.target.run(["sinfo", "--version"]).out.strip(), seed, today, machine())

    def run(self) -> CampaignReport:
        """Faults until the time is up, then a good end."""
        self.slurm.clear()
        self.slurm.target.bash(f"rm -rf {FOLDER}; install -d -m 1777 {FOLDER}", user="root")
        self.faults.prepare()
        self.watch.begin()
        self.report.rss_kb.append(self._rss())
        began = time.monotonic()
        try:
            while time.monotonic() - began < self.seconds:
                self._fill()
                self._strike(began)
            self._end()
        finally:
            self.faults.put_back()
        self.report.seconds = round(time.monotonic() - began, 1)
        self.report.checks, self.report.forgotten_by_slurm = self.watch.checks, len(self.watch.forgotten)
        return self.report

    def _fill(self) -> None:
        while len(self._queue()) < IN_THE_QUEUE:
            sent, untaken = submit(self.slurm, self.dice, AT_ONCE)
            self.watch.sent += sent
            self.report.jobs += len(sent)
            self.report.untaken += untaken
            if not sent:
                return

    def _strike(self, began: float) -> None:
        fault = self.faults.draw()
        at = time.monotonic()
        fault.do()
        # Users go on.
        sent, untaken = submit(self.slurm, self.dice, 2)
        self.watch.sent += sent
        self.report.jobs += len(sent)
        self.report.untaken += untaken
        time.sleep(self.dice.uniform(2, 10))
        fault.undo()
        undone = time.monotonic()
        strike = Strike(round(at - began, 1), fault.name, fault.node, round(undone - at, 1), 0.0)
        wrong = self._wait_until_back()
        strike.back_s = round(time.monotonic() - undone, 1)
        strike.wrong = [*wrong, *self.watch.look()]
        self.report.strikes.append(strike)
        say(f"{strike.at_s:6.0f} s {fault.name}{f' ({fault.node})' if fault.node else ''}: lasted {strike.lasted_s} s,"
            f" back after {strike.back_s} s, {len(self._queue())} jobs in the queue"
            + "".join(f"\n    WRONG: {one}" for one in strike.wrong))  # fmt: skip

    def _wait_until_back(self) -> list[str]:
        until, missing = time.monotonic() + BACK_WITHIN, ""
        while time.monotonic() < until:
            self._admin()
            missing = self._missing()
            if not missing:
                return []
            time.sleep(0.5)
        return [f"{BACK_WITHIN:g} s after the end of a fault {missing}"]

    def _missing(self) -> str:
        """Names what is not back yet."""
        answer = self.slurm.target.run(["berth", "status", "--json"], user="root", check=False)
        if answer.rc:
            return f"berthd does not answer: {answer.text.strip()[-200:]}"
        told = json.loads(answer.out)
        if told.get("problem"):
            return f"berthd says: {told['problem']}"
        if int(told.get("snapshot_age_ms") or 10**6) > 3_000:
            return f"the planner's last picture is {told.get('snapshot_age_ms')} ms old"
        nodes = self.slurm.target.run(["sinfo", "-h", "-N", "-o", "%N %T"], user="root", check=False).out.split("\n")
        bad = ("down", "drain", "unk", "*", "fail", "inval")
        closed = [line for line in nodes if any(word in line for word in bad)]
        return f"nodes are closed: {', '.join(closed)}" if closed else ""

    def _admin(self) -> None:
        reasons = self.slurm.target.run(["sinfo", "-h", "-R", "-o", "%E"], user="root", check=False).out.splitlines()
        for reason in reasons:
            count = self.report.closed_by_slurm.get(reason, 0)
            self.report.closed_by_slurm[reason] = count + 1
        launch = self.slurm.target.run(["squeue", "-h", "-t", "PD", "-o", "%r"], user="root", check=False).out
        self.report.held_by_slurm += launch.count("launch")
        self.slurm.target.bash(ADMIN, user="root", check=False)

    def _queue(self) -> list[str]:
        return self.slurm.target.run(["squeue", "-h", "-r", "-o", "%i"], user="root", check=False).out.split()

    def _rss(self) -> int:
        pids = "$(pgrep -f 'bin/berthd|policy.daemon.passes.planning')"
        text = self.slurm.target.bash(f"for p in {pids}; do grep VmRSS /proc/$p/status; done", user="root", check=False)
        return sum(int(line.split()[1]) for line in text.out.splitlines())

    def _end(self) -> None:
        """Faults are over: every job comes to its end, and nothing is left."""
        say("faults are over")
        until = time.monotonic() + END_WITHIN
        left = self._queue()
        while (left := self._queue()) and time.monotonic() < until:
            self._admin()
            self.report.left += self.watch.look()
            time.sleep(2)
        if left:
            lines = self.slurm.target.run(["squeue", "-h", "-r", "-o", "%i %T %r"], user="root").out.splitlines()
            self.report.left += [f"{END_WITHIN:g} s after the last fault a job has not ended: {line}" for line in lines]
        self.report.left += self.watch.look()
        kinds = {one.id: one.kind for one in self.watch.sent}
        self.report.ends = dict(Counter(state for number, state in self.watch.last.items() if number in kinds))
        told = (f"{kinds[number]}: {why}" for number, why in self.watch.failed.items() if number in kinds)
        self.report.failed = dict(Counter(told))
        odd = [job for job in records(self.slurm) if job.state not in ENDED]
        self.report.left += [f"job {job.id} is {job.state}, and not in the queue" for job in odd if not left]
        self.report.rss_kb.append(self._rss())


def main() -> int:
    """Exit status 1 where an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="make campaign", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--profile", default="base", choices=["base", "accounting"])
    parser.add_argument("--seed", type=int, help="drawn, and printed, where it is left out")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6)
    say(f"SEED={seed} MINUTES={options.minutes:g} SLURM={options.slurm}")
    cluster = clusters.Cluster(options.slurm, berth=True)
    was_up = bool(cluster.containers())
    up = [sys.executable, str(CLUSTER), "up", "--slurm", options.slurm, "--profile", options.profile]
    subprocess.run(up, check=True)
    try:
        slurm = Slurm(options.slurm, Container(f"{cluster.project}-ctl"))
        accounting = options.profile == "accounting"
        report = Campaign(slurm, seed, 60 * options.minutes, accounting=accounting).run()
    finally:
        if not was_up:
            subprocess.run([sys.executable, str(CLUSTER), "down", "--slurm", options.slurm], check=True)
    FOLDER_OF_REPORTS.mkdir(parents=True, exist_ok=True)
    path = FOLDER_OF_REPORTS / f"{options.slurm}-{seed}.json"
    path.write_text(json.dumps({**asdict(report), "wrong": report.wrong}, indent=1) + "\n", encoding="utf-8")
    done = Counter(strike.fault for strike in report.strikes)
    backs = sorted(strike.back_s for strike in report.strikes)
    say(f"{len(report.strikes)} faults of {len(done)} kinds, {report.jobs} jobs, {report.checks} checks")
    say(
        f"back after {backs[len(backs) // 2]} s in the middle, {backs[-1]} s at most; {len(report.wrong)} wrong; {path}"
    )
    for line in report.wrong:
        sys.stderr.write(f"campaign: {line}\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
