"""The world of the nodes: plays a script of steps with real Prologs, Epilogs and guards, and checks after each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from policy.formats import pin_text
from tests.world.checks import ViolationError
from tests.world.clock import Replaced, VirtualTime
from tests.world.cluster import ModelCluster, ModelJob, ModelNode, Portion, Refusal
from tests.world.nodes import invariants
from tests.world.nodes.invariants import NodeLaws
from tests.world.nodes.machine import Machine
from tests.world.nodes.side import NodeSide
from tests.world.nodes.slurm import NodeRun
from tests.world.script import Step

_MEMORY = "/dev/shm"
SHARES = (20, 30, 50, 70, 100)
SLICE = 5.0
MOST_MOVES = 3
"""How often a job without a share is moved."""
NODES = (("n1", 2), ("n2", 2))
DRIVERS = ("r550", "r580", "r595")
_QUIET = 180.0
"""Seconds after which no fault is an excuse any more: two sweeps of the guard, and Slurm's memory of jobs apart."""


class NodeWorld:
    """Two nodes, a small Slurm, one clock; a script is all that decides."""

    def __init__(self) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="berth-nodes-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
        )
        self.clock = VirtualTime()
        self.cluster = ModelCluster(ModelNode(name, gpus=gpus) for name, gpus in NODES)
        self.side = NodeSide(self.clock, self.cluster, self.folder)
        self.slurm, self.tasks = self.side.slurm, self.side.tasks
        self.replaced = Replaced()
        self.happened: Counter[str] = Counter()
        self.troubled = {name: float("-inf") for name in self.side.machines}
        """By node: when the last fault was."""
        self.laws = NodeLaws(self)
        self.notices_lost = False
        self.clock_back = 0
        """Seconds by which the clock was set back in all: so much longer files of jobs without a share are kept."""
        self.most_jobs = 8
        self.slurm.last = lambda run: " | ".join([line for node, line in self.side.said if node == run.node][-2:])
        self.slurm.on_notice = self._notice
        self.slurm.excuse_at = self.excuse
        self.slurm.on_trouble = self.trouble
        self.slurm.on_launch = self._launched
        self.side.answer = self._berthd

    def __enter__(self) -> Self:
        self.side.put_in(self.replaced)
        self._site(0, 0, 8)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.side.take_out()
        self.replaced.undo()
        shutil.rmtree(self.folder)

    def _site(self, bits: int, driver: int, most_jobs: int) -> None:
        self.most_jobs = most_jobs
        self.side.mps.driver = DRIVERS[driver]
        self.multi_user = bool(bits & 1) and driver > 0
        self.tiers_by_time = bool(bits & 128)
        chained = bool(bits & 2)
        text = [
            "[node]",
            f"multi_user = {str(self.multi_user).lower()}",
            f'violation = "{("warn", "terminate", "requeue", "requeue")[bits >> 2 & 3]}"',
            f'static_partitions = "{"auto" if bits & 16 else "never"}"',
            "mps_start_timeout = 20",
            "mps_stop_timeout = 5",
            "chain_timeout = 30",
            'scontrol = "/usr/bin/scontrol"',
        ]
        if chained:
            text += ['chain_prolog = ["/etc/slurm/site.sh"]', 'chain_epilog = ["/etc/slurm/site.sh"]']
        if bits & 32:
            text += ['jobs_for_dcgm = "/run/dcgm"', 'jobs_for_jobstats = "/run/jobstats"']
        text += ["[notice]", 'hosts = "ctl"', "[guard.action]", f"evict_grace_s = {5 if bits & 64 else 0}"]
        for machine in self.side.machines.values():
            (machine.folder / "etc/slurm/berth.conf").write_text("\n".join(text) + "\n")
            script = machine.folder / "etc/slurm/site.sh"
            script.write_text("#!/bin/sh\n")
            script.chmod(0o755)

    # Steps

    def play(self, script: Iterable[Step], *, calm: bool = True) -> None:
        """Play a script; with `calm` the faults end after it, and all must come to a good end."""
        for step in script:
            self.step(step)
        if calm:
            self.calm_down()

    def step(self, step: Step) -> None:
        """One step, and all checks."""
        self.happened[str(step[0])] += 1
        self.cluster.now = self.clock.time()
        try:
            self._do(step)
            self.slurm.turn()
        except ViolationError:
            raise
        except Exception as fault:
            raise ViolationError(f"an exception in {step}: {fault!r}") from fault
        invariants.look(self)

    def _do(self, step: Step) -> None:  # noqa: PLR0912 - a table
        name, *rest = step
        numbers = [one for one in rest if isinstance(one, int)]
        words = [one for one in rest if isinstance(one, str)]
        match name:
            case "site":
                self._site(*numbers)
            case "submit":
                self._submit(words[0], *numbers)
            case "sched":
                self._schedule()
            case "run":
                self._run(words[0], *numbers)
            case "cut":
                self._cut(words[0], *numbers)
            case "wait":
                self._wait(numbers[0] / 10)
            case "kill" | "hang":
                self._harm(str(name), words[0], numbers[0])
            case "go":
                for process in self.side.programs(("prolog", "epilog", "guard", "dead-man")):
                    if process.stalled:
                        # It acts on what it had read before.
                        self.trouble(process.machine.name)
                    process.stalled = False
            case "again":
                self._again(words[0], numbers[0])
            case "guard":
                self.side.start_guard(self._machine(numbers[0]).name)
            case "stop":
                self.trouble(self._machine(numbers[0]).name)
                self.side.stop_guard(self._machine(numbers[0]).name)
            case "mps" | "gpu" | "disk":
                self._hardware(str(name), words[0], *numbers)
            case "slurm":
                self.slurm.out = words[0] == "out"
                self._trouble_all()
            case "script":
                self._script(words[0], numbers[0])
            case "node":
                self._node(words[0], numbers[0])
            case "people":
                self._people(words[0], numbers[0])
            case "client":
                self._client(words[0], numbers[0])
            case "notices":
                self.notices_lost = words[0] == "lost"
            case "berthd":
                self.side.hears = words[0] == "hears"
            case "clock":
                self.clock.offset += numbers[0]
                self.clock_back += max(0, -numbers[0])
                self._trouble_all()

    def _machine(self, number: int) -> Machine:
        return list(self.side.machines.values())[number % len(self.side.machines)]

    def trouble(self, node: str) -> None:
        """A fault: for some time it may be why something does not go well there."""
        self.troubled[node] = self.clock.passed
        for run in self.slurm.runs.values():
            if run.node == node and run.prolog is not None:
                run.excuse = "a fault meanwhile"

    def _trouble_all(self) -> None:
        for name in self.side.machines:
            self.trouble(name)

    def excuse(self, node: str) -> str:
        """Why something may go wrong on a node now; empty if all is well, and has been for long enough."""
        machine = self.side.machines[node]
        if self.slurm.out or machine.full or machine.write_faults or machine.nvml_fails or self.side.mps.missing:
            return "a fault lasts"
        if any(gpu.lost for gpu in machine.gpus):
            return "a GPU is lost"
        if self.slurm.script_hangs or node in self.slurm.script_fails:
            return "a script of the site's fails"
        if any(process.stalled for process in machine.processes.values()):
            return "a program hangs"
        if (
            any(daemon.hangs or daemon.refuses for daemon in self.side.mps.of(machine))
            or self.side.mps.server_starts_in > 1.0
        ):
            return "MPS does not do what it is told"
        if self.side.mps.server_dies:
            return "MPS does not do what it is told"
        # What a fault has left is cleared by the guard, once Slurm says that the job is over.
        since = self.side.guard_since.get(node, float("inf"))
        if self.troubled[node] > float("-inf") and max(since, self.troubled[node]) + _QUIET > self.clock.passed:
            return "a fault was lately"
        return ""

    # Time

    def _run(self, kind: str, number: int, operations: int) -> None:
        able = [task for task in self.tasks.living if task.name.startswith(kind) and self.tasks.can_run(task)]
        if able:
            self.tasks.run(able[number % len(able)], operations)

    def _cut(self, kind: str, number: int, operations: int) -> None:
        """A program is killed after so many operations; what it waits for meanwhile, it gets."""
        found = self.side.programs((kind,))
        if not found:
            return
        process = found[number % len(found)]
        self.trouble(process.machine.name)
        last = self.tasks.operations + operations
        while not process.dead and self.tasks.operations < last:
            task = process.tasks[0]
            if self.tasks.can_run(task):
                self.tasks.run(task, last - self.tasks.operations)
            elif process.stalled:
                break
            else:
                self._wait(0.2)
        process.end()

    def _wait(self, seconds: float) -> None:
        self.side.pace(min(30.0, max(0.2, seconds / 20.0)))
        end = self.clock.passed + seconds
        if seconds >= 5.0:
            self._back_in_service()
            self._schedule()
            self.slurm.turn()
        while self.clock.passed < end - 1e-9:
            self.tasks.advance(min(SLICE, end - self.clock.passed), self._after_each)
            self._after_each()
            self.side.restart_guards()
            self.cluster.tick()
            self.slurm.turn()

    def _after_each(self) -> None:
        self.cluster.now = self.clock.time()
        self.slurm.turn()

    # Jobs

    def _submit(self, kind: str, place: int, size: int, work: int, user: int) -> None:
        """A job that berthd has placed: on GPU `place` of all, with a share by `size`."""
        cluster = self.cluster
        if sum(not job.over for job in cluster.jobs.values()) >= self.most_jobs:
            return
        job = ModelJob(cluster.next_id, 1_000 + user % 3, f"job{size % 3}", 1, 1, kind, work, "COMPLETED")
        job.fate = "FAILED" if size % 5 == 4 else "COMPLETED"
        node = ("n1", "n2")[place // 2 % 2]
        gpus, nodes = [place % 2], [node]
        if kind == "whole" and size % 3 == 0:
            gpus = [0, 1]
        if kind in {"whole", "host"} and size % 4 == 1:
            nodes = ["n1", "n2"]
            job.n = 2
        by_time = (place + size) % 3 == 0 if kind == "share" else self.tiers_by_time
        way = "time" if by_time else "mps"
        more: dict[str, str] = {}
        if kind == "share":
            job.share = SHARES[size % 5]
            more = {"share": str(job.share), "way": way}
            if size % 2:
                more["mem"] = str(2_048 + 1_024 * size)
            job.tres_per_node = pin_text.tres_text(("shard",), gpus, job.share)
        elif kind == "host":
            more = {"tier": "guaranteed", "way": way}
            job.tres_per_node = pin_text.tres_text(("gpu",), gpus, 1)
        elif kind == "guest":
            more = {"tier": "opportunistic", "way": way}
            job.tres_per_node = pin_text.tres_text(("seat",), gpus, 1)
        else:
            job.tres_per_node = pin_text.tres_text(("gpu",), gpus, 1)
        job.k = len(gpus)
        job.req_nodes = ",".join(nodes)
        job.extra = pin_text.extra_text("", nodes, ",".join(map(str, gpus)), more)
        job.admin_comment = "[berth/1 state=pinned]"
        job.submitted = int(cluster.now)
        cluster.add(job)

    def _schedule(self) -> None:
        """Start what fits: by GPUs, and by what berthd lets share a GPU."""
        for job in self.cluster.order():
            if job.held or job.begin > self.cluster.now:
                continue
            wants = job.portion()
            assert wants is not None
            names = job.req_nodes.split(",")
            nodes = [self.cluster.nodes[name] for name in names]
            if all(node.open and node.fits(wants) and self._may_meet(job, node, wants) for node in nodes):
                self.cluster._start(job, dict.fromkeys(names, wants))

    def _may_meet(self, job: ModelJob, node: ModelNode, wants: Portion) -> bool:
        """As berthd plans: on a shared GPU one way, one set of GPUs, one user unless the site has more, two tiers."""
        places = set(invariants.places(wants))
        for other_id, held in node.held.items():
            other = self.cluster.jobs[other_id]
            theirs = set(invariants.places(held))
            if not places & theirs:
                continue
            if job.kind == other.kind == "guest" or ("share" in {job.kind, other.kind} and job.kind != other.kind):
                return False
            if "whole" in {job.kind, other.kind}:
                run = self.slurm.runs.get((other_id, node.name))
                if job.kind == "guest" or other.kind != "guest" or run is None or run.prolog is not None:
                    return False
                continue
            if _way(job) != _way(other) or (_way(job) == "mps" and places != theirs):
                return False
            if _way(job) == "mps" and job.user != other.user and not self.multi_user:
                return False
        return True

    def _people(self, what: str, number: int) -> None:
        found = [job for job in self.cluster.jobs.values() if not job.over]
        if not found:
            return
        job = found[number % len(found)]
        try:
            if what == "cancel":
                self.cluster.cancel(job)
            elif what == "requeue" and not job.waits:
                self.cluster.requeue(str(job.id), incomplete=False)
                job.begin = int(self.cluster.now)
            elif what == "begin":
                job.begin = int(self.cluster.now)
            elif what == "end" and job.state == "RUNNING" and not job.ends_on:
                job.end = int(self.cluster.now)
                self.cluster.tick()
        except Refusal:
            pass

    # Faults

    def _harm(self, how: str, kind: str, number: int) -> None:
        found = self.side.programs((kind,))
        if not found:
            return
        process = found[number % len(found)]
        self.trouble(process.machine.name)
        if how == "hang":
            process.stalled = True
        else:
            process.end()

    def _again(self, what: str, number: int) -> None:
        """Slurm runs a program once more: an Epilog of a run that is over, or the Prolog of one that has begun."""
        if what == "epilog":
            now = {run.job.id: run for run in self.slurm.runs.values() if run.phase in {"prolog", "ready", "runs"}}
            # Where the clock was set back between two runs of a job, their starts do not tell which was first.
            ended = [run for run in self.slurm.past if run.job.id not in now or run.start < now[run.job.id].start]
            past = [run for run in ended if run.job.id in now] or ended[-8:]
            if past:
                self.slurm.epilog(past[number % len(past)])
            return
        runs = [run for run in self.slurm.runs.values() if run.phase in {"ready", "runs"} and run.prolog is None]
        if runs:
            run = runs[number % len(runs)]
            run.again = True
            self.slurm.prolog(run)

    def _hardware(self, which: str, what: str, number: int) -> None:  # noqa: PLR0912 - a table
        machine = self._machine(number)
        gpu = machine.gpus[number // 2 % len(machine.gpus)]
        daemons = self.side.mps.of(machine)
        daemon = daemons[number // 2 % len(daemons)] if daemons else None
        self.trouble(machine.name)
        match which, what:
            case "mps", "dies" if daemon is not None:
                daemon.process.end()
            case "mps", "server-dies" if daemon is not None:
                for server in list(daemon.service.servers.values()):
                    server.process.end()
            case "mps", "fault" if daemon is not None:
                daemon.fault(number)
            case "mps", "hangs" if daemon is not None:
                daemon.hangs = True
            case "mps", "refuses" if daemon is not None:
                daemon.refuses = True
            case "mps", "works":
                for one in self.side.mps.daemons.values():
                    one.hangs = one.refuses = False
                self.side.mps.server_dies = self.side.mps.missing = False
                self.side.mps.server_starts_in = 0.3
            case "mps", "no-server":
                self.side.mps.server_dies = True
            case "mps", "slow":
                self.side.mps.server_starts_in = 25.0
            case "mps", "missing":
                self.side.mps.missing = True
            case "gpu", "fails":
                machine.nvml_fails = True
            case "gpu", "works":
                machine.nvml_fails = False
                machine.gpus_back()
            case "gpu", "busy":
                gpu.busy, gpu.memory_used = 100, 0.97
            case "gpu", "idle":
                gpu.busy, gpu.memory_used, gpu.slow_clock = 10, 0.1, False
            case "gpu", "hot":
                gpu.slow_clock = True
            case "gpu", "lost":
                gpu.lost = True
            case "gpu", "xid":
                machine.xids.append((gpu.uuid, (13, 31, 79, 48)[number // 4 % 4]))
                self.laws.xid(gpu.uuid)
            case "disk", "full":
                machine.full = True
            case "disk", "free":
                machine.full = False
            case "disk", "fails":
                machine.write_faults.append(1 + number)

    def _script(self, what: str, number: int) -> None:
        self._trouble_all()
        self.slurm.script_hangs = what == "hangs"
        if what == "fails":
            self.slurm.script_fails.add(self._machine(number).name)
        elif what == "works":
            self.slurm.script_fails.clear()

    def _node(self, what: str, number: int) -> None:
        machine = self._machine(number)
        if what == "resume":
            self.cluster.nodes[machine.name].flags.clear()
            self.slurm.drained.pop(machine.name, None)
        elif what == "reboot":
            self.trouble(machine.name)
            self.slurm.reboot(machine.name)
        elif what == "drain":
            self.cluster.nodes[machine.name].flags.add("DRAIN")

    def _client(self, what: str, number: int) -> None:
        """A program of a job does something by itself."""
        found = [one for run in self.slurm.runs.values() for one in run.programs if not one.dead]
        if not found:
            return
        process = found[number % len(found)]
        if what == "crash":
            self.slurm._program_fails(process)
        elif what == "rests":
            process.uuids = ()
        elif what == "fork":
            more = process.machine.spawn("/usr/bin/train", process.uid, parent=process.pid)
            process.machine.join(more, process.job or 0, process.group)
            for run in self.slurm.runs.values():
                if process in run.programs:
                    run.programs.append(more)

    def _launched(self, run: NodeRun) -> None:
        if why := invariants.not_whole(self, run):
            self.slurm.problems.append(why)

    # berthd

    def _notice(self, run: NodeRun, ended_well: bool) -> None:
        """The Epilog's end: berth-notice tells berthd, if the Epilog went well; the node is free in any case."""
        job = run.job
        invariants.after_epilog(self, run)
        degraded = job.degraded
        if run.node in job.ends_on:
            self.cluster.epilog_done(job.id, run.node)
        heard = degraded and ended_well and not self.notices_lost
        if heard and job.state == "FAILED" and not job.ends_on and job.restarts < MOST_MOVES:
            self.cluster.requeue(str(job.id), incomplete=False)
            job.begin = int(self.cluster.now)

    def _berthd(self, node: str, text: str) -> bool:
        words = dict(word.partition("=")[::2] for word in text.split()[2:])
        self.laws.told(node, words)
        if words.get("word") in {"leave", "evict"}:
            job = self.cluster.jobs.get(int(words["job"]))
            if job is not None and job.state == "RUNNING" and not job.ends_on and words["word"] == "evict":
                self.cluster.requeue(str(job.id), incomplete=True)
        return True

    # The end

    def calm_down(self) -> None:
        """Faults are over; after a few minutes nothing is left of jobs that are gone, and those there are run well."""
        self._mend()
        for number in range(2):
            self._wait(50.0)
            invariants.look(self)
            if number == 0:
                # Programs that hung for too long were ended now.
                self._back_in_service()
        invariants.calm(self)
        for job in list(self.cluster.jobs.values()):
            self.cluster.cancel(job)
        for seconds in (70.0, 70.0, 620.0 + self.clock_back):
            self._wait(seconds)
            invariants.look(self)
        invariants.nothing_left(self)

    def _mend(self) -> None:
        self.slurm.out = self.slurm.script_hangs = False
        self.slurm.script_fails.clear()
        self.notices_lost, self.side.hears = False, True
        for number, machine in enumerate(self.side.machines.values()):
            machine.full = machine.nvml_fails = False
            machine.write_faults.clear()
            machine.xids.clear()
            for process in machine.processes.values():
                if process.stalled:
                    self.trouble(machine.name)
                process.stalled = False
            self._hardware("mps", "works", number)
            machine.gpus_back()
            for gpu in machine.gpus:
                gpu.busy, gpu.memory_used, gpu.slow_clock = 10, 0.1, False
            self.side.start_guard(machine.name)
        self._back_in_service()

    def _back_in_service(self) -> None:
        self.slurm.drained.clear()
        for node in self.cluster.nodes.values():
            node.flags.clear()


def _way(job: ModelJob) -> str:
    return "time" if "way=time" in job.extra else "mps"


def play_nodes(script: Iterable[Step]) -> NodeWorld:
    """Play a script in a world of its own; a `ViolationError` tells what went wrong."""
    with NodeWorld() as world:
        world.play(script)
    return world
