# SPDX-License-Identifier: Apache-2.0
"""`make campaign`: seeded faults on the real test cluster while jobs of every kind run, and invariants after each."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from containers import cluster as clusters
from policy.formats import plan_fields
from tests.bench.table import machine
from tests.hard.faults.failed import FailedJob
from tests.hard.faults.invariants import Watch, records
from tests.hard.faults.jobs import FOLDER, OUTPUT, SentJob, submit
from tests.hard.faults.kinds import Fault, Faults
from tests.hard.faults.site import FaultySite
from tests.hard.faults.users import ChangingUsers
from tests.slurm.harness import ENDED, Slurm
from tests.slurm.target import Container

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "containers" / "cluster.py"
FOLDER_OF_REPORTS = ROOT / "build" / "campaign"
AT_ONCE = 6
CHANGES_AT_ONCE = 2
"""Of each user, during each fault."""
PLACED_WITHIN = 60.0
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
    profile: str
    backup: bool
    seed: int
    date: str
    machine: str
    load: list[float] = field(default_factory=list)
    """The machine's load average, now and then."""
    seconds: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    jobs: int = 0
    untaken: int = 0
    """Submissions that failed, as with plain Slurm, while slurmctld was away."""
    ends: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """By kind, Slurm's reason and exit code, but for those that fail by their script."""
    why_failed: list[FailedJob] = field(default_factory=list)
    changes_by_users: dict[str, int] = field(default_factory=dict)
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

    def __init__(self, site: FaultySite, seed: int, seconds: float) -> None:
        self.site, self.dice, self.seconds = site, random.Random(seed), seconds
        # Dice of their own: how many jobs are submitted depends on when Slurm does what.
        self.fault_dice = random.Random(seed + 2)
        self.faults = Faults(site, self.fault_dice)
        self.users = ChangingUsers(site, random.Random(seed + 1))
        self.watch = Watch(site, self.users)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        version = site.ask("sinfo", "--version").out.strip()
        self.report = CampaignReport(version, site.profile, site.backup, seed, today, machine())

    def run(self) -> CampaignReport:
        """Faults until the time is up, then a good end."""
        self.site.slurm.clear()
        folders = f"rm -rf {FOLDER} {OUTPUT}; install -d -m 1777 {FOLDER} {OUTPUT}"
        self.site.slurm.target.bash(folders, user="root")
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
        self.report.changes_by_users = dict(self.users.counts)
        return self.report

    def _submit(self, count: int) -> list[SentJob]:
        sent, untaken = submit(self.site, self.dice, count)
        self.watch.sent += sent
        self.report.jobs += len(sent)
        self.report.untaken += untaken
        return sent

    def _fill(self) -> None:
        while len(self._queue()) < self.site.in_the_queue:
            if not self._submit(AT_ONCE):
                return

    def _strike(self, began: float) -> None:
        fault = self.faults.draw()
        self.report.load.append(round(os.getloadavg()[0], 1))
        at = time.monotonic()
        if fault.loses_state:
            self.users.lose()
        fault.do()
        if not (self.site.backup and fault.hangs_slurmctld):
            # Users go on.
            self._submit(2)
            self.users.act(CHANGES_AT_ONCE)
        wrong = self._check_the_backup() if fault.takes_over else []
        time.sleep(self.fault_dice.uniform(2, 10))
        if fault.takes_over:
            # The backup ends in order, and saves what it knows.
            wrong += self.watch.look()
        fault.undo()
        self._tell(fault, at, began, wrong)

    def _tell(self, fault: Fault, at: float, began: float, wrong: list[str]) -> None:
        undone = time.monotonic()
        strike = Strike(round(at - began, 1), fault.name, fault.node, round(undone - at, 1), 0.0)
        wrong = [*wrong, *self._wait_until_back()]
        strike.back_s = round(time.monotonic() - undone, 1)
        strike.wrong = [*wrong, *self.watch.look()]
        self.report.strikes.append(strike)
        say(f"{strike.at_s:6.0f} s {fault.name}{f' ({fault.node})' if fault.node else ''}: lasted {strike.lasted_s} s,"
            f" back after {strike.back_s} s, {len(self._queue())} jobs in the queue"
            + "".join(f"\n    WRONG: {one}" for one in strike.wrong))  # fmt: skip

    def _check_the_backup(self) -> list[str]:
        """While the backup is in control, berthd beside it answers, and gives a job its place."""
        until, missing = time.monotonic() + BACK_WITHIN, "?"
        while missing and time.monotonic() < until:
            time.sleep(0.5)
            missing = self._berthd_lacks("ctl2")
        if missing:
            return [f"{BACK_WITHIN:g} s after the backup took over {missing}"]
        words = ["timeout", "60", "sbatch", "--parsable", "--gpus=1", "-t3", "--mem=50", "--requeue", "-o", "/dev/null"]
        told = self.site.slurm.target.run([*words, "--wrap", "sleep 5"], check=False).out.strip()
        if not told.isdigit():
            return ["the backup took no job while it was in control"]
        until = time.monotonic() + PLACED_WITHIN
        while time.monotonic() < until:
            record = self.site.ask("scontrol", "show", "job", told).out
            if any(f"state={state}" in record for state in plan_fields.PINNED_STATES):
                return []
            time.sleep(0.5)
        return [
            f"job {told} had no place {PLACED_WITHIN:g} s after it was submitted to the backup in control: {record}"
        ]

    def _wait_until_back(self) -> list[str]:
        until, missing = time.monotonic() + BACK_WITHIN, ""
        while time.monotonic() < until:
            self._admin()
            missing = self._missing()
            if not missing:
                return []
            time.sleep(0.5)
        return [f"{BACK_WITHIN:g} s after the end of a fault {missing}"]

    def _berthd_lacks(self, controller: str) -> str:
        script = "timeout 60 berth status --json"
        answer = self.site.controllers[controller].target.bash(script, user="root", check=False)
        if answer.rc:
            return f"berthd on {controller} does not answer: {answer.text.strip()[-200:]}"
        told = json.loads(answer.out)
        if told.get("problem"):
            return f"berthd on {controller} says: {told['problem']}"
        if int(told.get("snapshot_age_ms") or 10**6) > 3_000:
            return f"the last picture of the planner on {controller} is {told.get('snapshot_age_ms')} ms old"
        return ""

    def _missing(self) -> str:
        """Names what is not back yet."""
        for controller in self.site.controllers:
            if lack := self._berthd_lacks(controller):
                return lack
        answer = self.site.ask("sinfo", "-h", "-N", "-o", "%N %T")
        if answer.rc:
            return f"slurmctld does not answer: {answer.text.strip()[-200:]}"
        nodes = answer.out.split("\n")
        bad = ("down", "drain", "unk", "*", "fail", "inval")
        closed = [line for line in nodes if any(word in line for word in bad)]
        return f"nodes are closed: {', '.join(closed)}" if closed else ""

    def _admin(self) -> None:
        reasons = self.site.ask("sinfo", "-h", "-R", "-o", "%E").out.splitlines()
        for reason in reasons:
            count = self.report.closed_by_slurm.get(reason, 0)
            self.report.closed_by_slurm[reason] = count + 1
        launch = self.site.ask("squeue", "-h", "-t", "PD", "-o", "%r").out
        self.report.held_by_slurm += launch.count("launch")
        self.site.slurm.target.bash(ADMIN, user="root", check=False, timeout=300)

    def _queue(self) -> list[str]:
        return self.site.ask("squeue", "-h", "-r", "-o", "%i").out.split()

    def _rss(self) -> int:
        pids = "$(pgrep -f 'bin/berthd|policy.daemon.passes.planning')"
        script = f"for p in {pids}; do grep VmRSS /proc/$p/status; done"
        text = self.site.controllers["ctl"].bash(script, check=False)
        return sum(int(line.split()[1]) for line in text.splitlines())

    def _end(self) -> None:
        """Faults are over: every job comes to its end, and nothing is left."""
        say("faults are over")
        until = time.monotonic() + END_WITHIN
        while (left := self._queue()) and time.monotonic() < until:
            self._admin()
            self.users.release_all()
            self.report.left += self.watch.look()
            time.sleep(2)
        if left:
            lines = self.site.ask("squeue", "-h", "-r", "-o", "%i %T %r").out.splitlines()
            self.report.left += [f"{END_WITHIN:g} s after the last fault a job has not ended: {line}" for line in lines]
        self.report.left += self.watch.look()
        kinds = {one.id: one.kind for one in self.watch.sent}
        self.report.ends = dict(Counter(state for number, state in self.watch.last.items() if number in kinds))
        self.report.why_failed = list(self.watch.failed.values())
        self.report.failed = dict(Counter(f"{job.kind}: {job.why}" for job in self.report.why_failed))
        odd = [job for job in records(self.site) or () if job.state not in ENDED]
        self.report.left += [f"job {job.id} is {job.state}, and not in the queue" for job in odd if not left]
        self.report.rss_kb.append(self._rss())


def main() -> int:
    """Exit status 1 where an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="make campaign", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--profile", default="base", choices=sorted(clusters.NODES_OF_PROFILE))
    parser.add_argument("--backup", action="store_true", help="with a second controller, which takes over")
    parser.add_argument("--seed", type=int, help="drawn, and printed, where it is left out")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6)
    with_backup = ["--backup"] if options.backup else []
    say(f"SEED={seed} MINUTES={options.minutes:g} SLURM={options.slurm} PROFILE={options.profile}"
        f" BACKUP={'yes' if options.backup else ''}")  # fmt: skip
    cluster = clusters.Cluster(options.slurm, berth=True)
    was_up = bool(cluster.containers())
    up = [sys.executable, str(CLUSTER), "up", "--slurm", options.slurm, "--profile", options.profile, *with_backup]
    subprocess.run([*up, "--time-limit", "600"], check=True)
    try:
        site = FaultySite(Slurm(options.slurm, Container(f"{cluster.project}-ctl")), options.profile, options.backup)
        report = Campaign(site, seed, 60 * options.minutes).run()
    finally:
        if not was_up:
            subprocess.run([sys.executable, str(CLUSTER), "down", "--slurm", options.slurm], check=True)
    FOLDER_OF_REPORTS.mkdir(parents=True, exist_ok=True)
    path = FOLDER_OF_REPORTS / f"{options.slurm}-{options.profile}{'-backup' * options.backup}-{seed}.json"
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
