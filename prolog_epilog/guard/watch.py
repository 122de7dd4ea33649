"""The guard's audit: who is on a shared GPU and who may be, MPS's faults, and shares whose Epilog never came.

Once a second, in a thread of its own: Slurm and MPS may take their time. It opens the driver only while something is
shared (an open handle would keep a GPU from being reset), and starts no process for a look.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from prolog_epilog import (
    arrivals,
    audit,
    cgroups,
    devices,
    logfile,
    processes,
    quarantine,
    share_file,
    state,
    tenancy,
    time_slices,
)
from prolog_epilog.audit import Action
from prolog_epilog.config import NodeConfig
from prolog_epilog.devices import Driver
from prolog_epilog.errors import Interrupted, NodeError, SlurmError
from prolog_epilog.guard import freezer
from prolog_epilog.guard.logs import Logs
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.trimming import trim
from prolog_epilog.injob import word
from prolog_epilog.mps import lifecycle, trouble
from prolog_epilog.paths import Paths
from prolog_epilog.slurm import Scontrol
from prolog_epilog.state import SetState

__all__ = ["PERIOD", "Watch", "step"]

PERIOD = 1.0
"""Seconds between two looks."""

_SELDOM = 60.0
_END_SECONDS = 5.0
_MOST_PROCESSES = 4_096


@dataclass(slots=True)
class Watch:
    """What the guard remembers between two looks."""

    paths: Paths
    config: NodeConfig
    slurm: Scontrol
    judge: audit.Judge
    boot: str
    said: set[str] = field(default_factory=set)
    stack: ExitStack = field(default_factory=ExitStack)
    driver: Driver | None = None
    lost_at: float = 0.0
    trimmed_at: float = 0.0
    jobs: dict[int, int | None] = field(default_factory=dict)
    """Jobs of the processes that were seen."""
    users: dict[int, int] = field(default_factory=dict)
    """Users of the jobs that were seen: the cause of a fault may be out of the books before it is looked for."""
    blamed: set[int] = field(default_factory=set)
    """Processes that caused a fault which was dealt with."""
    on_culprit: Callable[[SetState, int], None] = lambda _one, _job: None
    """Told which job brought MPS down on which GPUs."""
    logs: Logs = field(default_factory=Logs)

    def look(self) -> list[Action]:
        """One look, and what has to be done after it."""
        books = list(state.everything(self.paths))
        if not books:
            self.close()
            return []
        if self.driver is None:
            self.driver = self.stack.enter_context(devices.driver())
        seen, self.jobs = self.jobs, {}
        excesses = audit.look(books, self.driver.processes, self._job_of, self._ours)
        # What ended just now is still wanted: it may be the cause of a fault. What is ending is in no job any more.
        now = {pid: job for pid, job in self.jobs.items() if job is not None or pid not in seen}
        self.jobs = {**seen, **now} if len(seen) < _MOST_PROCESSES else now
        known = self.users if len(self.users) < _MOST_PROCESSES else {}
        self.users = {**known, **{tenant.job: tenant.uid for one in books for tenant in one.tenants}}
        return self.judge.answers(excesses)

    def mend(self) -> None:
        """Begin anew where MPS failed. Its clients are dead, so all jobs but that of the cause are requeued."""
        for one in list(state.everything(self.paths)):
            # Without a job it is what an Epilog that was killed has left: nobody needs its MPS.
            if one.method == time_slices.METHOD or not one.tenants:
                continue
            if not self.logs.hints_at_fault(one, self.paths, self.boot):
                continue
            named = set(trouble.culprits(self.paths, one.uuids[0]))
            # A server whose clients are all gone may have recovered before we asked.
            broken = trouble.server_status(self.paths, self.config, one.uuids[0]) in {"FAULT", "GONE"}
            if broken:
                # Its log may name the cause only now, and goes with a server that is begun anew.
                named |= set(trouble.reset_after_fault(self.paths, self.config, one.uuids[0]).culprits)
            named -= self.blamed
            if broken or named:
                self.blamed |= named
                self._requeue_victims(one, {self.jobs.get(pid) for pid in named})

    def _requeue_victims(self, one: SetState, causes: set[int | None]) -> None:
        words = ", ".join(f"job {job}" for job in sorted(filter(None, causes))) or "no job that is known"
        self.say(f"MPS failed on GPU {', '.join(one.uuids)} and runs again; the cause was {words}", again=True)
        users = {**self.users, **{tenant.job: tenant.uid for tenant in one.tenants}}
        for job in filter(None, causes):
            self.on_culprit(one, job)
            if job in users:
                quarantine.set_apart(self.paths, users[job])
        for tenant in one.tenants:
            if tenant.job not in causes:
                self.say(f"job {tenant.job} lost its GPU by that and is requeued", again=True)
                self._requeue(tenant.job)

    def trim_logs(self) -> None:
        """Keep MPS's logs small, when what they say has been read."""
        if time.monotonic() < self.trimmed_at + _SELDOM:
            return
        self.trimmed_at = time.monotonic()
        for one in state.everything(self.paths):
            for sentence in trim(one, self.paths) if one.method != time_slices.METHOD else ():
                self.say(sentence)

    def forgive(self) -> None:
        """What stands in the logs from before the guard's start was dealt with, or is still there to be seen."""
        for one in state.everything(self.paths):
            self.blamed |= set(trouble.culprits(self.paths, one.uuids[0]))

    def act(self, action: Action) -> None:
        """Answer an excess."""
        excess = action.excess
        self.say(f"{excess.text}; {_DONE[action.what]}", again=True)
        if action.what == "terminate":
            self._end(excess.uuid, excess.pids)
        elif action.what == "requeue" and excess.job is not None:
            self._requeue(excess.job)

    def clear_lost(self) -> None:
        """Take jobs out of the books whose Epilog never came: no control group here, and Slurm does not know them.

        What an Epilog that did not come to its end has left goes too.
        """
        if time.monotonic() < self.lost_at + _SELDOM:
            return
        self.lost_at = time.monotonic()
        for one in list(state.everything(self.paths)):
            for tenant in one.tenants:
                if not tenancy.is_over(tenant.job, self.slurm):
                    continue
                self.say(f"job {tenant.job} is over, but its Epilog never came: its share is taken back", again=True)
                freezer.release(self.paths, tenant.job)
                if not time_slices.detach(self.paths, tenant.job):
                    lifecycle.detach(self.paths, self.config, tenant.job)
                share_file.remove(self.paths, tenant.job)
                word.remove(self.paths.word(tenant.job))
        for sentence in lifecycle.sweep(self.paths, self.config):
            self.say(sentence, again=True)
        arrivals.clean(self.paths, lambda job: not tenancy.is_over(job, self.slurm))
        share_file.remove_old(self.paths)

    def end_clients(self, guest: Member) -> None:
        """Have MPS end a guest's clients."""
        for uuid in guest.uuids:
            trouble.terminate_clients(self.paths, self.config, uuid, tuple(freezer.pids(guest.job)))

    def close(self) -> None:
        """Let go of the driver."""
        self.stack.close()
        self.driver = None

    def say(self, sentence: str, *, again: bool = False) -> None:
        """Tell the log; what stays as it is is said once."""
        if sentence in self.said and not again:
            return
        self.said.add(sentence)
        sys.stderr.write(f"berth-guard: {sentence}\n")
        sys.stderr.flush()
        if self.config.log:
            _append(self.config.log, sentence)

    def _job_of(self, pid: int) -> int | None:
        self.jobs[pid] = cgroups.job_of(pid)
        return self.jobs[pid]

    def _ours(self, one: SetState) -> set[int]:
        """The daemon's and the servers' processes; a server that the books do not know yet is the daemon's child."""
        if one.daemon is None or not processes.alive(one.daemon, self.boot):
            return set()
        servers = {server.pid for server in one.servers if processes.alive(server, self.boot)}
        return {one.daemon.pid, *servers, *processes.children(one.daemon.pid)}

    def _requeue(self, job: int) -> None:
        try:
            self.slurm.requeue(job)
        except SlurmError as problem:
            self.say(str(problem))

    def _end(self, uuid: str, pids: Sequence[int]) -> None:
        """MPS first: a client that is killed while it computes may take the others with it."""
        proven = [found for found in (processes.prove(pid, self.boot) for pid in pids) if found is not None]
        one = state.load(self.paths, uuid)
        if one is not None and one.method != time_slices.METHOD:
            trouble.terminate_clients(self.paths, self.config, uuid, pids)
        for process in proven:
            if cgroups.job_of(process.pid) is not None:
                processes.end(process, self.boot, _END_SECONDS)


_DONE = {
    "warn": "watching",
    "terminate": "its processes on this GPU are ended",
    "requeue": "the job is requeued",
}


def step(watch: Watch) -> None:
    """One look and its answers; a fault of one second is not the next one's."""
    try:
        for action in watch.look():
            watch.act(action)
        watch.mend()
        watch.trim_logs()
        watch.clear_lost()
        watch.said.clear()
    except Interrupted:
        # The signal was caught while a program ran; it is meant for the guard.
        os.kill(os.getpid(), signal.SIGTERM)
    except NodeError as problem:
        watch.close()
        watch.say(str(problem))


def _append(path: str, sentence: str) -> None:
    try:
        logfile.append(path, f"{time.time():.6f}\tguard\t{sentence}")
    except OSError as problem:
        sys.stderr.write(f"berth-guard: {path}: {problem.strerror}\n")
