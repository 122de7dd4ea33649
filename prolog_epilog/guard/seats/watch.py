# SPDX-License-Identifier: Apache-2.0
"""The guard's audit: processes on a shared GPU against the jobs in the books, MPS's faults, and lost Epilogs.

It runs once a second, in a thread of its own, because Slurm and MPS may be slow. It opens the driver only while a GPU
is shared: an open handle would keep a GPU from being reset. It starts no process for a look.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prolog_epilog import monitoring
from prolog_epilog.errors import DriverError, HardwareFault, Interrupted, NodeError, NodeSlurmError
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.seats.trimming import Logs, trim
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.messages import GUARD, numbered, tagged
from prolog_epilog.mps import lifecycle, losses, trouble
from prolog_epilog.mps.losses import LossRecord
from prolog_epilog.node import cgroups, devices, files, freezer, logfile, processes
from prolog_epilog.node.devices import Driver, GpuProcess
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import tenancy, time_slices
from prolog_epilog.tenants import arrivals, audit, pages, quarantine, share_file, state
from prolog_epilog.tenants.arrivals import Arrival
from prolog_epilog.tenants.audit import AuditAction, Excess
from prolog_epilog.tenants.state import SetState, Tenant

PERIOD = 1.0
"""Seconds between two looks."""

_SELDOM = 60.0
_END_SECONDS = 5.0
_MOST_PROCESSES = 4_096
_MOST_GUESSES = 3


@dataclass(slots=True)
class Watch:
    """The state of the audit between two looks."""

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
    """The jobs of the processes that were seen."""
    users: dict[int, int] = field(default_factory=dict)
    """The users of the jobs that were seen: the cause of a fault may be out of the books before it is looked for."""
    told: dict[int, float] = field(default_factory=dict)
    """The jobs that berthd was told had brought MPS down, and when."""
    on_culprit: Callable[[str, int, int], None] = lambda _node, _gpu, _job: None
    """Is called with the node, the GPU and the job that brought MPS down."""
    lost: NodeError | None = None
    """The last finding about a GPU of which the driver does not tell."""
    good: bool = True
    """False if a part of this look failed."""
    guesses: Counter[int] = field(default_factory=Counter)
    """The number of times that a job was run again after a fault of unknown cause: the job itself may be the cause."""
    blamed: list[LossRecord] = field(default_factory=list)
    """The losses that Slurm has to tell more of, and whose cause was told."""
    logs: Logs = field(default_factory=Logs)
    doubted: frozenset[int] = frozenset()
    """Owners that arrived before the guard stood still: they may have gone, and only Slurm knows."""

    def look(self) -> list[AuditAction]:
        """Looks once, and returns what has to be done after it."""
        books = list(state.everything(self.paths))
        if not books:
            self.close()
            return []
        if self.driver is None:
            self.driver = self.stack.enter_context(devices.driver())
        seen, self.jobs, self.lost = self.jobs, {}, None
        excesses = audit.look(books, self._processes, self._job_of, self._ours)
        # A process that ended just now is kept: it may be the cause of a fault. A process that is ending is in no job
        # any more.
        now = {pid: job for pid, job in self.jobs.items() if job is not None or pid not in seen}
        self.jobs = {**seen, **now} if len(seen) < _MOST_PROCESSES else now
        known = self.users if len(self.users) < _MOST_PROCESSES else {}
        self.users = {**known, **{tenant.job: tenant.uid for one in books for tenant in one.tenants}}
        return self.judge.answers(excesses)

    def audit(self) -> None:
        """Looks once, and answers. Then a GPU of which the driver does not tell is reported."""
        for action in self.look():
            self.attempt(partial(self.act, action))
        if self.lost is not None:
            raise self.lost

    def _processes(self, uuid: str) -> Sequence[GpuProcess]:
        """Returns the processes on a GPU; none if the driver does not tell, so that it costs the audit of no other."""
        assert self.driver is not None, "a look has opened it"  # noqa: S101 - narrows the type
        try:
            return self.driver.processes(uuid)
        except (DriverError, HardwareFault) as fault:
            self.lost = fault
            return ()

    def attempt(self, part: Callable[[], None]) -> None:
        """Runs a part of a look, or its part about one GPU or job. The driver is opened anew after one that failed."""
        try:
            part()
        except Interrupted:
            raise
        except (NodeError, OSError) as problem:
            self.close()
            self.say(numbered(problem))
            self.good = False

    def mend(self) -> None:
        """Restarts MPS where it failed. Its clients are dead, so all jobs except the cause's are requeued."""
        for one in list(state.everything(self.paths)):
            # A set without a job was left by an Epilog that was killed: no job needs its MPS.
            if one.method != time_slices.METHOD and one.tenants:
                self.attempt(partial(self._mend, one))
        known = losses.records(self.paths)
        for record in known:
            self.attempt(partial(self._settle, record))
        self.blamed = known

    def _mend(self, one: SetState) -> None:
        hinted = self.logs.hints_at_fault(one, self.paths, self.boot)
        if not hinted and not any(tenant.lost for tenant in one.tenants):
            return
        # A server whose clients are all gone may have recovered before this look; then only its log tells.
        reset = trouble.reset_after_fault(self.paths, self.config, one.uuids[0])
        if reset.tenants:
            self._requeue_victims(one, reset.tenants, self._causes(reset.causes), reset.causes)

    def _causes(self, pids: Iterable[int]) -> set[int | None]:
        """Returns the jobs of these processes; None among them for a process that was never seen."""
        return {self.jobs.get(pid) for pid in pids}

    def _requeue_victims(
        self, one: SetState, victims: Sequence[Tenant], causes: set[int | None], pids: tuple[int, ...] = ()
    ) -> None:
        self.users |= {tenant.job: tenant.uid for tenant in one.tenants}
        self.say(
            f"MPS failed on GPU {', '.join(one.uuids)} and runs again; the cause was {_names(causes)} [BERTH-931]",
            again=True,
        )
        place = next(filter(None, (self._place_of(tenant.job, one.uuids[0]) for tenant in one.tenants)), None)
        if place is not None:
            self._blame(*place, causes)
        for tenant in victims:
            if tenant.job in causes:
                continue
            if place is not None and self._ends(tenant.job):
                # It may have been cancelled, or be done: its Epilog had to wait for the lock.
                record = LossRecord(tenant.job, tenant.uid, tenant.start, *place, one.uuids, pids)
                self.attempt(partial(losses.leave, self.paths, record))
            else:
                self._run_again(tenant.job, causes)

    def _ends(self, job: int) -> bool:
        with suppress(NodeSlurmError):
            return self.slurm.state(job) not in {"RUNNING", "SUSPENDED", ""}
        return False

    def _settle(self, record: LossRecord) -> None:
        """Runs a job again that ended by a fault of MPS before the guard looked, once Slurm has it as failed."""
        causes = self._causes(record.pids)
        self.users[record.job] = record.uid
        if record not in self.blamed:
            self._blame(record.node, record.gpu, causes)
        if record.job in causes:
            losses.forget(self.paths, record.job)
            return
        try:
            state = self.slurm.state(record.job)
        except NodeSlurmError as problem:
            self.say(numbered(problem))
            return
        if state == "COMPLETING":
            return
        losses.forget(self.paths, record.job)
        # If it is pending or runs, it was requeued already; if it finished or was cancelled, it has to stay so.
        if state == "FAILED":
            self.say(
                f"MPS failed on GPU {', '.join(record.uuids)}; the cause was {_names(causes)} [BERTH-931]", again=True
            )
            self._run_again(record.job, causes)

    def _blame(self, node: str, gpu: int, causes: set[int | None]) -> None:
        """Tells once whose program caused the fault, and keeps that user's jobs apart from others."""
        for job in filter(None, causes):
            if job in self.told and time.monotonic() < self.told[job] + _SELDOM:
                continue
            self.told[job] = time.monotonic()
            self.on_culprit(node, gpu, job)
            if job in self.users:
                quarantine.set_apart(self.paths, self.users[job])

    def _run_again(self, job: int, causes: set[int | None]) -> None:
        if not any(causes):
            self.guesses[job] += 1
            if self.guesses[job] > _MOST_GUESSES:
                self.say(
                    f"job {job} lost its GPU by that; the cause is not known, and it is run again no more [BERTH-932]",
                    again=True,
                )
                return
        self.say(f"job {job} lost its GPU by that and is requeued [BERTH-932]", again=True)
        self._requeue(job)

    def _node_of(self, job: int) -> str:
        """Returns the name of this node in Slurm, from a job's share file; empty if that cannot be read."""
        with suppress(NodeError):
            file = share_file.read(self.paths, job)
            return "" if file is None else file.node
        return ""

    def _place_of(self, job: int, uuid: str) -> tuple[str, int] | None:
        """Returns the node and the position of a GPU, from the share file of a job on it."""
        with suppress(NodeError):
            file = share_file.read(self.paths, job)
            if file is not None and file.node and uuid in file.uuids:
                return file.node, file.gpus[file.uuids.index(uuid)]
        return None

    def trim_logs(self) -> None:
        """Keeps MPS's logs small, after they have been read."""
        if time.monotonic() < self.trimmed_at + _SELDOM:
            return
        self.trimmed_at = time.monotonic()
        for one in state.everything(self.paths):
            for sentence in trim(one, self.paths) if one.method != time_slices.METHOD else ():
                self.say(sentence)

    def act(self, action: AuditAction) -> None:
        """Carries out the answer to an excess."""
        excess = action.excess
        if excess.kind == "foreign" and excess.job is not None and self._is_owner(excess.job, excess.uuid):
            return
        self.say(f"{excess.text}; {_DONE[action.what]} [BERTH-933]", again=True)
        if action.what == "terminate":
            self._end(excess)
        elif action.what == "requeue" and excess.job is not None:
            # The job may have ended within these ten seconds, and an ended job is not run again.
            self._requeue(excess.job, if_running=True)

    def _is_owner(self, job: int, uuid: str) -> bool:
        """Tells whether Slurm gave a job without a share the GPU as a whole; true also if that is not known.

        Such a job may have come while a guest's Prolog ran, or the guest has its time to save its work: the guest has
        to go, and never the owner.
        """
        tenants = [tenant.job for one in state.everything(self.paths) if uuid in one.uuids for tenant in one.tenants]
        place = next(filter(None, (self._place_of(tenant, uuid) for tenant in tenants)), None)
        if place is None:
            return True
        node, position = place
        try:
            owns = position in self.slurm.held(job, node).gpus
        except NodeSlurmError as problem:
            self.say(numbered(problem))
            return True
        known = any(one.job == job for one in arrivals.pending(self.paths))
        if owns and not known and arrivals.guests_on(self.paths, (uuid,)):
            arrivals.announce(self.paths, Arrival(job, (uuid,), planned=False))
        return owns

    def forget_arrivals(self) -> None:
        """Removes the notes of owners that came and went while the guard did not run: no guest leaves for them."""
        arrivals.clean(self.paths, lambda job: not tenancy.is_over(job, self.slurm))

    def doubt_arrivals(self) -> None:
        """Lets no guest leave for jobs that have arrived, until Slurm was asked for them."""
        self.doubted = frozenset(one.job for one in arrivals.pending(self.paths))

    def settle_doubts(self) -> None:
        """Asks Slurm; this may take a while."""
        if self.doubted:
            self.forget_arrivals()
            self.doubted = frozenset()

    def clear_lost(self) -> None:
        """Takes jobs out of the books whose Epilog never came: no control group here, and Slurm does not know them.

        Also removes what an Epilog that was killed has left.
        """
        if time.monotonic() < self.lost_at + _SELDOM:
            return
        self.lost_at = time.monotonic()
        for one in list(state.everything(self.paths)):
            for tenant in one.tenants:
                if tenancy.is_over(tenant.job, self.slurm, self._node_of(tenant.job)):
                    self.attempt(partial(self._take_back, tenant))
        for sentence in lifecycle.sweep(self.paths, self.config):
            self.say(sentence, again=True)
        self._clear_files()
        for kept in self.paths.given.glob("[0-9]*"):
            if tenancy.is_over(int(kept.name), self.slurm):
                kept.unlink(missing_ok=True)
        self.forget_arrivals()
        share_file.remove_old(self.paths)
        known = self.paths
        folders = [known.root, known.frozen, known.arrivals, known.lost, known.failed, known.given]
        folders += [Path(name) for name in (self.config.jobs_for_dcgm, self.config.jobs_for_jobstats) if name]
        files.remove_drafts(folders, share_file.KEEP_SECONDS)
        for job in monitoring.clean(self.paths, self.config, lambda job: tenancy.is_over(job, self.slurm)):
            self.say(f"job {job} is over, and is taken out of the files for monitoring [BERTH-934]", again=True)

    def _take_back(self, tenant: Tenant) -> None:
        """Takes the share of this run back; a later run may start while Slurm is asked or a lock is waited for.

        A Prolog of a later run that was cut off leaves its share file, and the tenant as it found it.
        """
        self.say(
            f"job {tenant.job} is over, but its Epilog never came: its share is taken back [BERTH-934]", again=True
        )
        if not share_file.has_later(self.paths, tenant.job, tenant.start):
            freezer.release(self.paths, tenant.job)
        if not time_slices.detach(self.paths, tenant.job, tenant.start):
            lifecycle.detach(self.paths, self.config, tenant.job, tenant.start)
        if not share_file.has_later(self.paths, tenant.job, tenant.start):
            pages.remove(self.paths, tenant.job)
            share_file.remove(self.paths, tenant.job, tenant.start)

    def _clear_files(self) -> None:
        """Removes share files that outlived the books.

        An Epilog takes its job out of the books before it removes the file, and may be killed in between.
        """
        files = share_file.jobs(self.paths)
        # Read the books after the files: a job with a good file now was in the books before.
        booked = {tenant.job for one in state.everything(self.paths) for tenant in one.tenants}
        for job, written in files.items():
            if job not in booked and time.time() - written >= _SELDOM:
                self.attempt(partial(self._clear_file, job, written))

    def _clear_file(self, job: int, written: float) -> None:
        file = None
        with suppress(NodeError):
            file = share_file.read(self.paths, job)
        # The file of a job that could not share is still to be told of (share_file.remove_old).
        told_later = file is not None and file.degraded
        node = "" if file is None else file.node
        if (told_later and not self.paths.word(job).exists()) or not tenancy.is_over(job, self.slurm, node):
            return
        # The job may have been started again while Slurm was asked.
        if share_file.jobs(self.paths).get(job) != written:
            return
        self.say(f"job {job} is over, and what its Epilog left of its share is removed [BERTH-934]", again=True)
        freezer.release(self.paths, job)
        start = 0 if file is None else file.start
        if not share_file.has_later(self.paths, job, start):
            pages.remove(self.paths, job)
        if not told_later:
            share_file.remove(self.paths, job, start)

    def end_clients(self, guest: Member) -> None:
        """Has MPS end a guest's clients."""
        for uuid in guest.uuids:
            trouble.terminate_clients(self.paths, self.config, uuid, tuple(freezer.pids(guest.job)))

    def close(self) -> None:
        """Closes the driver."""
        self.stack.close()
        self.driver = None

    def say(self, sentence: str, *, again: bool = False) -> None:
        """Writes to the log; a sentence that stays true is written once."""
        if sentence in self.said and not again:
            return
        self.said.add(sentence)
        told = tagged(sentence, GUARD)
        sys.stderr.write(f"berth-guard: {told}\n")
        sys.stderr.flush()
        if self.config.log:
            _append(self.config.log, told)

    def _job_of(self, pid: int) -> int | None:
        self.jobs[pid] = cgroups.job_of(pid)
        return self.jobs[pid]

    def _ours(self, one: SetState) -> set[int]:
        """Returns the processes of the daemon and the servers; a server not in the books yet is the daemon's child."""
        if one.daemon is None or not processes.alive(one.daemon, self.boot):
            return set()
        servers = {server.pid for server in one.servers if processes.alive(server, self.boot)}
        return {one.daemon.pid, *servers, *processes.children(one.daemon.pid)}

    def _requeue(self, job: int, *, if_running: bool = False) -> None:
        try:
            self.slurm.requeue(job, if_running=if_running)
        except NodeSlurmError as problem:
            self.say(numbered(problem))

    def _end(self, excess: Excess) -> None:
        """Ends the processes of an excess, by MPS first: killing a client while it computes may end the others too."""
        is_theirs = lambda pid: cgroups.job_of(pid) == excess.job  # noqa: E731 - asked again before each signal
        with processes.held(excess.pids, is_theirs) as found:
            one = state.load(self.paths, excess.uuid)
            if one is not None and one.method != time_slices.METHOD:
                trouble.terminate_clients(self.paths, self.config, excess.uuid, tuple(found.values()))
            processes.end_all(found, is_theirs, _END_SECONDS)


_DONE = {
    "warn": "watching",
    "terminate": "its processes on this GPU are ended",
    "requeue": "the job is requeued",
}


def step(watch: Watch) -> None:
    """Looks once and answers; an error of one part stops neither the others nor the next look."""
    watch.good = True
    try:
        for part in (watch.settle_doubts, watch.audit, watch.mend, watch.trim_logs, watch.clear_lost):
            watch.attempt(part)
    except Interrupted:
        # The signal was caught while a program ran; it is meant for the guard.
        os.kill(os.getpid(), signal.SIGTERM)
        return
    if watch.good:
        watch.said.clear()


def _names(causes: Iterable[int | None]) -> str:
    return ", ".join(f"job {job}" for job in sorted(filter(None, causes))) or "no job that is known"


def _append(path: str, sentence: str) -> None:
    try:
        logfile.append(path, f"{time.time():.6f}\tguard\t{sentence}")
    except OSError as problem:
        sys.stderr.write(f"berth-guard: {tagged(f'{path}: {problem.strerror}', GUARD)}\n")
