# SPDX-License-Identifier: Apache-2.0
"""The world: plays a script step by step, and checks after each that nothing has gone wrong."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import NamedTuple, Self

from policy.cli.jobs import release
from policy.daemon.answer.memory import KEPT_FOR
from policy.daemon.hear.endings import NodeWord
from policy.daemon.hear.guards import GuardWord
from policy.daemon.hear.notices import Notice
from policy.daemon.hear.words import Word
from policy.daemon.write import closers as closers_module
from policy.formats import wire
from policy.formats.errors import BerthError
from policy.retry.classes import CLASSES
from policy.site import log
from policy.slurm.by_command import command as command_module
from policy.slurm.by_command.command import CommandGateway
from tests.unit.policy_world import machine
from tests.unit.share_world import with_memory
from tests.world import checks, others_first, owners, people, reservations
from tests.world.berthd import BerthdProcesses, config_of
from tests.world.checks import ViolationError
from tests.world.clock import Replaced, VirtualTime, folder_in_memory
from tests.world.cluster import RUNNING_FLAGS, ModelCluster, ModelJob, ModelNode, Refusal
from tests.world.door import KilledError, SlurmDoor
from tests.world.script import Step
from tests.world.submit import apply, asked
from topology import files

VERSIONS = ("24.11.5", "25.11.2", "26.05.0")
NODE_SIZES = (("n1", 4, "h100"), ("n2", 4, "h100"), ("n3", 4, "h100"), ("n4", 2, "l40s"))
EPILOG_WAITS = 10.0
"""Seconds after which no notice is heard any more; longer than its connection lasts, for a planner may be in a pass."""

_CALM = (*[1] * 15, *[10] * 20, *[30] * 20, *[60] * 25)
"""Seconds between passes once all faults are over: 38 minutes."""

_SHORT = 10
"""Seconds between two passes at most while it is checked how long owners wait for guests."""

_LONGER = 60
"""Times that the last of these come again while somebody runs, or has just ended, for whom another may wait."""


class SentNotice(NamedTuple):
    """A message of a node on its way to berthd."""

    sent: float
    life: int
    """The life of the planner to which it was sent: no later one hears it."""
    job: int
    node: str
    degraded: bool = False
    word: Word | None = None
    run: int = 0
    """The requeues of its job before the run that ends."""


class DeterministicWorld:
    """One cluster, one berthd, one clock; a script is all that decides."""

    sizes: tuple[tuple[str, int, str], ...] = NODE_SIZES
    """The nodes, their GPUs, and their models."""

    def __init__(self) -> None:
        self.folder = folder_in_memory("berth-world-")
        self.clock = VirtualTime()
        self.gpus_of = {name: gpus for name, gpus, _ in self.sizes}
        self.cluster = ModelCluster(ModelNode(name, gpus=gpus, features=model) for name, gpus, model in self.sizes)
        self.door = SlurmDoor(self.cluster, self.clock)
        self.door.asked_by_berthd = self._asked
        self.replaced = Replaced()
        self.logged: list[str] = []
        self.happened: Counter[str] = Counter()
        self.network: list[SentNotice] = []
        """Notices on their way."""
        self.unanswered = 0
        self.said: dict[int, int] = {}
        """By job: the start of the run of which a notice was delivered."""
        self.forgotten: dict[str, ModelNode] = {}
        self.depth = 0
        self.given: dict[str, tuple[float, set[tuple[str, int]]]] = {}
        """By nonce: when, and which whole GPUs, free at once, no picture has shown as taken yet."""
        self.clock_back = 0
        """Seconds by which the clock was set back in all: so much longer a begin time keeps a job waiting."""
        self.processes: BerthdProcesses

    # Life

    def __enter__(self) -> Self:
        (self.folder / "topology").mkdir()
        for name, gpus, model in self.sizes:
            files.dump(
                with_memory(machine(name, model, gpus), checks.GPU_MIB[model] + 1_024),
                self.folder / "topology" / f"{name}.json",
            )
        self.replaced.set_time(self.clock)
        self.replaced.set(command_module, "subprocess", self.door)
        # To copy a large environment for each call is a tenth of all.
        self.replaced.set(command_module, "os", SimpleNamespace(environ={}, fsencode=os.fsencode))
        self.replaced.set(log, "info", self._log)
        self.replaced.set(log, "error", self._log_error)
        self._site(0, 0, 2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.processes.kill(all_of_it=True)
        self.replaced.undo()
        shutil.rmtree(self.folder)

    def _site(self, bits: int, slow: int, version: int, dead: int = 0, most_jobs: int = 14) -> None:
        """The site's settings; `dead`: the number of the node that stays down when all other faults are over."""
        self.dead, self.most_jobs = dead, most_jobs
        self.processes = BerthdProcesses(config_of(self.folder, bits), self.clock)
        self.clock.per_look = 0.006 if slow == 1 else 0.0
        self.cluster.version = VERSIONS[version]
        self.cluster.counts_models = bool(bits & 512)
        self.replaced.set(closers_module, "QUIET", 0.0 if bits & 1024 else 3.0)

    def play(self, script: Iterable[Step], *, calm: bool = True) -> None:
        """Play a script; with `calm` the faults end after it, and all must come to a good end."""
        for step in script:
            self.step(step)
        if calm:
            self.calm_down()

    def step(self, step: Step) -> None:
        """One step, and all checks."""
        self.happened[str(step[0])] += 1
        try:
            self._do(step)
        except KilledError:
            self.happened["killed in a call"] += 1
            self.processes.kill(all_of_it=False)
        except ViolationError:
            raise
        except Exception as fault:
            raise ViolationError(f"an exception in {step}: {fault!r}") from fault
        checks.look(self)

    def _do(self, step: Step) -> None:  # noqa: PLR0912 - a table
        name, *rest = step
        numbers = [one for one in rest if isinstance(one, int)]
        words = [one for one in rest if isinstance(one, str)]
        self.cluster.now = self.clock.time()
        match name:
            case "site":
                self._site(*numbers)
            case "during":
                self.door.during.setdefault(self.door.calls + 1 + numbers[0], []).append(
                    partial(self._within, (*rest[1:],))
                )
            case "during-change":
                within = self.door.during_changes.setdefault(self.door.changes + 1 + numbers[0], [])
                within.append(partial(self._within, (*rest[1:],)))
            case "fault":
                self.door.faults.setdefault(self.door.calls + 1 + numbers[0], []).append(words[0])
            case "fault-of-change":
                self.door.faults_of_changes.setdefault(self.door.changes + 1 + numbers[0], []).append(words[0])
            case "submit":
                self._submit(words[0], numbers[0], numbers[1], words[1], numbers[2])
            case "start":
                self.processes.start()
            case "kill":
                self.processes.kill(all_of_it=bool(numbers[0]))
                self._dies()
            case "pass" | "write" | "hear" | "deliver" | "guard" | "word":
                if not self.depth or name == "hear":
                    self._berthd(str(name), numbers, words)
            case "sched":
                self.cluster.schedule(strict=bool(numbers[0]))
            case "wait":
                self._wait(numbers[0] / 10)
            case "ends":
                if job := self._pick(numbers[0], lambda job: job.state == "RUNNING" and not job.ends_on):
                    self.cluster.finish(job, job.end_state)
            case "epilog" | "epilog-ends":
                self._epilog(numbers[0], speaks=name == "epilog")
            case "degrade":
                if job := self._pick(
                    numbers[0], lambda job: job.state == "RUNNING" and job.kind in {"share", "host", "guest"}
                ):
                    job.degraded = True
                    # Some end as if nothing were, or are cancelled in the same moment.
                    job.fails = numbers[0] % 3 > 0
            case "people":
                if job := self._pick(numbers[0], partial(people.concerns, words[0])):
                    with contextlib.suppress(Refusal):
                        self._person(words[0], job)
            case "node":
                self._node(words[0], numbers[0])
            case "reserve" | "unreserve":
                reservations.change(self.cluster, name, words[0], *numbers)
            case "clock":
                self.clock.offset += numbers[0]
                self.given.clear()
                self.clock_back += max(0, -numbers[0])
                self.cluster.now = self.clock.time()
            case "partition":
                self.cluster.partition_state = words[0]
            case "control":
                self.cluster.in_control = bool(numbers[0])
            case "outage":
                self.door.out_until = self.clock.passed + numbers[0]
            case "config-read":
                self.door.passes(16.0)
                self.cluster.now = self.clock.time()
            case "release":
                self.release(for_now=bool(numbers[0]))

    def _within(self, step: Step) -> None:
        self.depth += 1
        try:
            self._do(step)
        finally:
            self.depth -= 1

    def _pick(self, number: int, fits: Callable[[ModelJob], bool]) -> ModelJob | None:
        found = [job for job in self.cluster.jobs.values() if fits(job)]
        return found[number % len(found)] if found else None

    def _wait(self, seconds: float) -> None:
        self.clock.passed += seconds
        self.cluster.now = self.clock.time()
        self.cluster.tick()

    # berthd

    def _berthd(self, name: str, numbers: list[int], words: list[str]) -> None:
        planner = self.processes.planner
        match name:
            case "hear":
                self.processes.hear()
                self._forget_given()
            case "pass" if planner is not None:
                before = self.door.troubles
                there, let_go = checks.what_is_there(self.cluster), others_first.let_go(planner)
                planner.one_pass(ended=self.processes.word() or numbers[0] == 2)
                if self.door.troubles == before:
                    checks.sees_all(planner, *there)
                    checks.closed_right(self.cluster, planner)
                self.processes.make_room()
                checks.picture_agrees(planner)
                others_first.held_right(planner, let_go)
            case "write" if planner is not None:
                for _ in range(numbers[0]):
                    if not planner.write_one():
                        break
            case "deliver":
                self._deliver(numbers[0], words[0])
            case "guard" if planner is not None:
                guest = self._pick(
                    numbers[0], lambda job: job.kind == "guest" and job.state == "RUNNING" and not job.ends_on
                )
                if guest is not None:
                    gpu = next(iter(checks.places(self.cluster.nodes[guest.nodes[0]].held[guest.id])), 0)
                    state = "healthy" if words[0] == "state" else "harmed"
                    word = GuardWord(guest.nodes[0], gpu, guest.id, state, words[0], grace=2)
                    self._take([self._to_berthd(guest, guest.nodes[0], word)])
            case "word" if planner is not None:
                failed = self._pick(numbers[0], lambda job: job.state == "FAILED" and bool(job.nodes))
                if failed is not None:
                    kinds = sorted(CLASSES)
                    said = NodeWord(
                        failed.id, failed.nodes[0], kinds[numbers[0] % len(kinds)], True, "a sign", failed.start
                    )
                    self._take([self._to_berthd(failed, failed.nodes[0], said)])

    def _dies(self) -> None:
        """An answering process that is gone knows of no place that it gave."""
        if self.processes.answerer is None:
            self.given.clear()

    def _forget_given(self) -> None:
        """Drops what a snapshot shows, what was given too long ago, and what a job had that has ended."""
        until = self.clock.time() - KEPT_FOR
        gone = self.processes.seen | {f"{job.id:016x}" for job in self.cluster.jobs.values() if job.over}
        self.given = {nonce: one for nonce, one in self.given.items() if nonce not in gone and one[0] > until}

    def _to_berthd(self, job: ModelJob, node: str, word: Word | None = None) -> SentNotice:
        degraded = word is None and job.degraded
        return SentNotice(self.clock.passed, self.processes.life, job.id, node, degraded, word, job.restarts)

    def _notice(self, one: SentNotice) -> Notice:
        life = self.processes.life

        def reply(line: bytes) -> None:
            self.unanswered -= 1
            if life == self.processes.life and line:
                self.answered(one, line)

        return Notice(one.job, one.node, reply, one.degraded, one.word)

    def answered(self, one: SentNotice, line: bytes) -> None:  # noqa: ARG002 - for others
        """berthd has said something to a node."""
        if one.word is None:
            self.epilog_ends(one)

    def epilog_ends(self, one: SentNotice) -> None:
        """The Epilog that has sent a notice waits no longer."""
        self.cluster.epilog_done(one.job, one.node)

    def _take(self, notices: list[SentNotice]) -> None:
        planner = self.processes.planner
        assert planner is not None
        self.unanswered = len(notices)
        try:
            planner.take([self._notice(one) for one in notices])
        except KilledError:
            self.unanswered = 0
            raise
        self.processes.make_room()
        if self.unanswered > 0:
            raise ViolationError(
                f"{self.unanswered} of {len(notices)} notices were not answered: an Epilog waits for nobody"
            )

    def _epilog(self, number: int, *, speaks: bool) -> None:
        ending = [(job, node) for job in self.cluster.jobs.values() for node in sorted(job.ends_on)]
        if not ending:
            return
        job, node = ending[number % len(ending)]
        if not speaks:
            self.cluster.epilog_done(job.id, node)
        else:
            self.network.append(self._to_berthd(job, node))
            self.said[job.id] = job.restarts

    def _deliver(self, number: int, how: str) -> None:
        alive = []
        for one in self.network:
            if self.clock.passed - one.sent > EPILOG_WAITS or one.life != self.processes.life:
                self.epilog_ends(one)
            else:
                alive.append(one)
        self.network = alive
        if not alive:
            return
        first = number % len(alive)
        chosen = alive[first : first + 2] if how == "with-next" else [alive[first]]
        if how != "keep":
            self.network = [one for one in alive if one not in chosen]
        if how == "lose" or self.processes.planner is None:
            for one in chosen:
                self.epilog_ends(one)
            return
        self._take(chosen)
        checks.freed_right(self)

    def _submit(self, kind: str, size: int, work: int, fate: str, trouble: int) -> None:
        """A user submits; `trouble`: 1 the answer comes too late, 2 Slurm refuses the job after the hook."""
        cluster = self.cluster
        if sum(not job.over for job in cluster.jobs.values()) >= self.most_jobs:
            return
        job, fields = asked(cluster.next_id, kind, size, work, fate, int(self.clock.time()))
        reply = None
        answerer = self.processes.answerer
        if fields and answerer is not None:
            kept = answerer._memory.keeps(fields["uid"], self.clock.time())
            reply = answerer.answer(wire.encode("submit", fields), self.clock.time())
            answerer.settle()
            checks.given_once(self, fields, reply, kept=kept)
            if trouble == 1:
                reply = None
        if not apply(job, fields, reply):
            return
        if trouble == 2:
            cluster.next_id += 1
            return
        cluster.add(job)

    # Others

    def _person(self, what: str, job: ModelJob) -> None:  # noqa: PLR0912 - a table
        cluster = self.cluster
        runs = job.state == "RUNNING" and not job.ends_on
        match what:
            case "cancel":
                cluster.cancel(job)
            case "hold" if job.waits:
                job.priority, job.reason, job.user_hold = 0, "JobHeldUser", True
            case "free" if job.waits and job.held:
                job.priority, job.reason, job.user_hold = 1_000, "None", False
            case "requeue" | "requeue-hold":
                name = f"{job.array}_{job.task}" if job.array and job.task is not None else str(job.id)
                cluster.requeue(name, incomplete=False, hold=what == "requeue-hold")
            case "special-exit" if job.waits and not job.tasks:
                job.priority, job.flag, job.reason, job.user_hold = 0, "SPECIAL_EXIT", "JobHeldUser", True
            case "reservation-gone" if job.waits:
                job.priority, job.flag, job.reason, job.user_hold = 0, "RESV_DEL_HOLD", "ReservationDeleted", True
            case "expedite" if runs and cluster.version >= "25.11":
                cluster.finish(job, "PENDING", again=True)
                job.flag, job.epilog_failed, job.priority = "EXPEDITING", True, 2_000_000
                job.begin = job.user_begin = int(cluster.now)
            case "suspend" if runs:
                people.suspend(cluster, job)
            case "resume" if job.state == "SUSPENDED":
                people.resume(cluster, job)
            case "stop" if runs:
                job.flag = "STOPPED"
            case "signal" if runs:
                job.flag = "SIGNALING"
            case "resize" if runs:
                job.flag = "RESIZING"
            case "continue" if job.flag in RUNNING_FLAGS:
                job.flag = ""
            case "no-requeue":
                job.requeue = False
            case "never-requeue":
                job.never_requeued = True
            case "limit":
                job.limit = 30 if job.limit != 30 else 600
            case "priority" if not job.held:
                job.priority += 500
            case "revoke" if job.waits:
                cluster.cancel(job)
                job.state = "REVOKED"
            case "exclude" if job.waits:
                people.exclude(job, self.folder / "pinned.excluded", self.clock.time())
            case "nodes" if job.waits:
                job.req_nodes, job.touched, job.gpus_touched = f"n{1 + job.id % 3}", True, False
            case "gpus" if job.waits:
                people.other_gpus(job)
            case "put-off" if job.waits:
                people.put_off(cluster, job)
            case "gpus-alone" if job.waits:
                # By an administrator, whose change no plugin completes.
                job.gpus_touched = not job.touched or job.gpus_touched
                job.tres_per_node, job.tres_per_job, job.touched = "gres/gpu:1", "", True

    def _node(self, what: str, number: int) -> None:  # noqa: PLR0912 - a table
        cluster = self.cluster
        if what == "recall":
            cluster.nodes |= self.forgotten
            cluster.came_back |= self.forgotten.keys()
            self.forgotten.clear()
            return
        if not cluster.nodes:
            return
        node = list(cluster.nodes.values())[number % len(cluster.nodes)]
        idle = not node.held and not node.epilogs
        match what:
            case "drain":
                node.flags.add("DRAIN")
            case "resume":
                node.flags.clear()
            case "mute":
                node.flags.add("NOT_RESPONDING")
            case "heard":
                node.flags.discard("NOT_RESPONDING")
            case "maintain":
                node.flags ^= {"MAINTENANCE"}
            case "power-off" if idle:
                node.flags.discard("POWERING_DOWN")
                node.flags.add("POWERED_DOWN")
            case "power-off-soon" if idle and "POWERED_DOWN" not in node.flags:
                node.flags.add("POWERING_DOWN")
            case "power-on" if node.flags & {"POWERED_DOWN", "POWERING_DOWN"}:
                node.flags -= {"POWERED_DOWN", "POWERING_DOWN"}
            case "reboot-soon" if not idle:
                node.flags.add("REBOOT_REQUESTED")
            case "fail":
                node.flags.add("FAIL")
            case "down" | "reboot":
                people.lose(self.cluster, node)
                node.flags.add("DOWN" if what == "down" else "REBOOT_ISSUED")
                node.boot = int(cluster.now)
            case "fewer-gpus" if idle:
                node.gpus = max(1, node.gpus - 1)
            case "all-gpus" if idle:
                node.gpus = self.gpus_of[node.name]
            case "forget" if idle and len(cluster.nodes) > 2:
                self.forgotten[node.name] = cluster.nodes.pop(node.name)

    def release(self, *, for_now: bool) -> None:
        """An admin, or berthd's unit at its end, gives all waiting jobs back."""
        self.processes.kill(all_of_it=True)
        self._dies()
        faults, troubles, self.cluster.read_at = self.door.counted.copy(), self.door.troubles, 0.0
        out = self.door.out_until > self.clock.passed
        said = io.StringIO()
        options = argparse.Namespace(all=True, for_now=for_now, jobs=[], json=False)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                release._release(CommandGateway(), options)
        except BerthError as problem:
            self.logged.append(f"release: {problem}")
            # Slurm takes no list of nodes with one that is gone, so the job's own request cannot be put back.
            names_gone = any(job.user_nodes and job.user_nodes in self.forgotten for job in self.cluster.jobs.values())
            if self.door.counted == faults and not out and not names_gone:
                raise ViolationError(f"berth release --all: {problem}: {said.getvalue()}") from None
            return
        if self.door.troubles == troubles and not out:
            checks.nothing_of_ours(self.cluster)

    def _asked(self, command: tuple[str, ...]) -> None:
        if command[:2] == ("scontrol", "requeue"):
            checks.may_requeue(self.cluster, command[-1], incomplete="Incomplete" in command)
        if command[:1] == ("scancel",) and "-s" not in command:
            checks.may_cancel(self.cluster, command[-1])

    def _log(self, text: str, number: int = 0) -> None:  # noqa: ARG002 - ids are for people
        self.logged.append(text)

    def _log_error(self, text: object, number: int | None = None) -> None:  # noqa: ARG002
        self.logged.append(f"error: {text}")

    # The end

    def calm_down(self) -> None:
        """Faults are over, nodes are mended, holds are taken off: whoever can start has to."""
        self.mend()
        since: dict[tuple[int, int], float] = {}
        for seconds in (*_CALM[:15], self.clock_back, *_CALM) if self.clock_back else _CALM:
            self._calm_second(seconds)
            if seconds <= _SHORT:
                since = owners.no_owner_waits_long(self.cluster, since)
            if not any(job.waits or job.holds for job in self.cluster.jobs.values()):
                break
        for _ in range(_LONGER):
            lately = self.cluster.now - 2 * _CALM[-1]
            goes_on = any(job.holds or job.end > lately for job in self.cluster.jobs.values())
            if not (goes_on and checks.not_started(self.cluster)):
                break
            self._calm_second(_CALM[-1])
        checks.all_started(self)
        self._forget_all()

    def mend(self) -> None:
        """No more faults; a node may stay dead."""
        self.door.clear()
        cluster = self.cluster
        self._node("recall", 0)
        cluster.partition_state, cluster.in_control = "UP", True
        for number, node in enumerate(cluster.nodes.values(), 1):
            node.flags.clear()
            node.gpus = self.gpus_of[node.name]
            if number == self.dead:
                people.lose(self.cluster, node)
                node.flags.add("DOWN")
        for job in cluster.jobs.values():
            if job.held:
                job.priority, job.user_hold, job.reason = 1_000, False, "None"
            if job.flag in RUNNING_FLAGS:
                job.flag = ""
            if job.state == "SUSPENDED":
                people.resume(cluster, job)

    def _calm_second(self, seconds: int) -> None:
        for step in (("start",), ("pass", 1), ("hear",), ("write", 200), ("sched", 0), ("sched", 1)):
            self.step(step)
        reservations.all_known(self.cluster, self.processes.planner)
        self._calm_epilogs()
        self.step(("wait", 10 * seconds))

    def _calm_epilogs(self) -> None:
        for _ in range(8):
            if any(job.ends_on for job in self.cluster.jobs.values()):
                self.step(("epilog", 0))
                self.step(("deliver", 0, ""))
                checks.opened_for_freed(self)

    def _forget_all(self) -> None:
        """Hours later, with nobody left, memory and files are as small as after a start."""
        for job in list(self.cluster.jobs.values()):
            self.cluster.cancel(job)
        for _ in range(4):
            for job in list(self.cluster.jobs.values()):
                for node in sorted(job.ends_on):
                    self.cluster.epilog_done(job.id, node)
            self._wait(7 * 3_600.0)
            self.step(("pass", 1))
            self.step(("hear",))
        checks.small(self)


def play(script: Iterable[Step]) -> DeterministicWorld:
    """Play a script in a world of its own; a `ViolationError` tells what went wrong."""
    with DeterministicWorld() as world:
        world.play(script)
    return world


def say(text: str) -> None:
    """A line at once, even through a pipe."""
    print(text, flush=True)
