# SPDX-License-Identifier: Apache-2.0
"""Slurm as a node sees it: its Prologs and Epilogs, what they are told, what scontrol answers, what SPANK does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from policy.formats import segment
from prolog_epilog.errors import ExtraError, NodeError, TookTooLong
from prolog_epilog.job import extra as extras
from prolog_epilog.job.extra import NodeBerth
from prolog_epilog.node.children import CLEAN, ProgramEnd
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.world.checks import places
from tests.world.cluster import ModelCluster, ModelJob, Portion, Refusal
from tests.world.commands import _detail as detail
from tests.world.nodes.kernel import NodeKernel
from tests.world.nodes.machine import GPU_MIB, Machine, ModelProcess
from tests.world.nodes.mps import ModelMps
from tests.world.nodes.tasks import NodeTask

SHARING = frozenset({"share", "host", "guest"})
PROGRAM_SECONDS = 300.0
"""PrologEpilogTimeout."""
APART_FOR = 3_600.0 + 300.0
"""Seconds for which a node keeps a user apart, and within which its guard has found the cause."""


def leaves_no_memory(host: str, guest: str) -> bool:
    """Tells by the Extra of both whether a host may need memory that its guest would hold."""
    needs, wants = ((segment.fields(text) or {}).get("mem", "") for text in (host, guest))
    return not needs or int(needs) + int(wants or 1) > int(0.95 * GPU_MIB)


@dataclass(eq=False)
class NodeRun:
    """A run of a job on one node."""

    job: ModelJob
    node: str
    number: int
    environment: dict[str, str]
    start: int
    portion: Portion
    extra: str
    phase: str = "prolog"
    """prolog, ready, runs, ends, epilog, over."""
    prolog: NodeTask | None = None
    epilog: NodeTask | None = None
    began: float = 0.0
    """When the program that runs now began."""
    code: int | None = None
    """The Prolog's exit status; -9 if it was killed."""
    epilog_code: int | None = None
    programs: list[ModelProcess] = field(default_factory=list)
    excuse: str = ""
    """What went wrong around its Prolog, which may be why it has no share."""
    ended_at: float = 0.0
    again: bool = False
    """Its Prolog was run once more."""
    stopped: bool = False
    """SPANK has stopped it, as it had no share."""
    superseded: bool = False
    """Another run of its job has begun here before its Epilog had ended, as after a node was down."""
    was_ready: bool = False
    """Its Prolog had ended before its job did."""
    meets_apart: bool = False
    """While its Prolog ran, another job shared its GPUs, and the user of one of the two had brought MPS down."""

    @cached_property
    def berth(self) -> NodeBerth | None:
        """What its Extra says; None where that cannot be read."""
        try:
            return extras.read(self.extra, self.node)
        except ExtraError:
            return None

    @property
    def sharing(self) -> bool:
        return self.berth is not None and self.berth.is_shared

    @property
    def guest(self) -> bool:
        return bool(self.portion.seats) and not self.portion.gpus

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(places(self.portion))

    @property
    def ends(self) -> bool:
        """Tells whether its job has ended here, or is over."""
        return self.node in self.job.ends_on or self.job.restarts != self.number or self.job.over


class NodeSlurm:
    """slurmd of all nodes, and scontrol."""

    CLEAN = CLEAN

    def __init__(
        self, cluster: ModelCluster, machines: Mapping[str, Machine], kernel: NodeKernel, mps: ModelMps
    ) -> None:
        self.cluster, self.machines, self.kernel, self.mps = cluster, machines, kernel, mps
        self.tasks = kernel.tasks
        self.runs: dict[tuple[int, str], NodeRun] = {}
        self.past: list[NodeRun] = []
        """Runs that are over, latest last."""
        self.out = False
        self.script_fails: set[str] = set()
        self.script_hangs = False
        """What a site's script was run with: node, job, the GPUs that it may touch."""
        self.drained: dict[str, str] = {}
        self.run_program: Callable[[str], Callable[[], object]] = lambda _: lambda: 0
        self.on_notice: Callable[[NodeRun, bool], None] = lambda _, __: None
        self.excuse_at: Callable[[str], str] = lambda _: ""
        self.on_trouble: Callable[[str], None] = lambda _: None
        self.on_launch: Callable[[NodeRun], None] = lambda _: None
        self.on_start: Callable[[ModelJob, bool], None] = lambda _, __: None
        self.was_known: Callable[[NodeRun, int], bool] = lambda _, __: False
        """Tells whether berthd kept this user apart when it placed a run."""
        self.problems: list[str] = []
        self.last: Callable[[NodeRun], str] = lambda _: ""
        """The last that programs of its node said."""
        mps.on_lost = self._program_fails

    # What happens by itself

    def turn(self) -> None:
        """slurmctld's and slurmd's own work: Prologs of jobs that start, programs, Epilogs of those that end."""
        for job, was_over in self.cluster.started:
            self.on_start(job, was_over)
            # Its work begins after its Prologs.
            job.end = job.start + job.limit * 60
            for node in job.nodes:
                self._prolog(job, node)
        self.cluster.started.clear()
        for run in list(self.runs.values()):
            self._too_long(run)
            if run.phase in {"ready", "runs"} and run.ends:
                self._end_programs(run)
                run.phase, run.ended_at = "ends", self.tasks.clock.passed
            if run.phase == "prolog" and run.prolog is None:
                run.was_ready = not run.ends
                run.phase, run.ended_at = "ready" if run.was_ready else "ends", self.tasks.clock.passed
            if run.phase == "ends" and run.prolog is None:
                self._epilog(run)
        for job in list(self.cluster.jobs.values()):
            here = [run for run in self.runs.values() if run.job is job and run.number == job.restarts]
            if (
                job.state == "RUNNING"
                and not job.ends_on
                and here
                and all(run.phase == "ready" and run.prolog is None for run in here)
            ):
                self._begin(job, here)

    def _too_long(self, run: NodeRun) -> None:
        for task in (run.prolog, run.epilog):
            if task is not None and self.tasks.clock.passed - run.began > PROGRAM_SECONDS:
                self.on_trouble(run.node)
                task.process.end()

    def _environment(self, job: ModelJob, node: str, portion: Portion) -> dict[str, str]:
        places = [place for place in range(16) if (portion.gpus >> place & 1)] + [one for one, _ in portion.shards]
        found = {
            "SLURM_JOB_ID": str(job.id),
            "SLURM_JOB_UID": str(job.user),
            "SLURMD_NODENAME": node,
            "SLURM_JOB_EXTRA": job.extra,
            "SLURM_JOB_START_TIME": str(job.start),
            "SLURM_JOB_NODELIST": ",".join(job.nodes),
            "SLURM_JOB_PARTITION": job.partition,
            "SLURM_CONF": "/etc/slurm/slurm.conf",
        }
        if places:
            found["SLURM_JOB_GPUS"] = str(self.machines[node].gpus[max(places)].minor)
        return found

    def _prolog(self, job: ModelJob, node: str) -> None:
        portion = self.cluster.nodes[node].held[job.id]
        run = NodeRun(job, node, job.restarts, self._environment(job, node, portion), job.start, portion, job.extra)
        before = self.runs.get((job.id, node))
        if before is not None:
            self._supersede(before)
        self.runs[job.id, node] = run
        run.excuse = self.excuse_at(node) or ("a person changed its request" if job.touched else "")
        self.prolog(run)

    def _supersede(self, run: NodeRun) -> None:
        """A run that slurmctld has given up, as its node was down, comes to its end beside the next one."""
        run.superseded = True
        self.past.append(run)
        if run.phase in {"prolog", "ready", "runs", "ends"}:
            self._end_programs(run)
            self._epilog(run)

    def prolog(self, run: NodeRun) -> None:
        """Start the Prolog of a run, for the first time or again."""
        task = self._program(run, "prolog", run.environment)
        run.prolog, run.began = task, self.tasks.clock.passed
        run.meets_apart = self._meets_apart(run)

        def ended(task: NodeTask) -> None:
            if run.prolog is task:
                run.prolog = None
            run.code = task.result if isinstance(task.result, int) else -9
            run.excuse = run.excuse or self.excuse_at(run.node)
            run.meets_apart = run.meets_apart or self._meets_apart(run)
            self._failed(task, f"the Prolog of job {run.job.id}")
            if run.code != 0 and not run.excuse:
                self.problems.append(f"the Prolog of job {run.job.id} ended with {run.code} in peace: {self.last(run)}")
            if run.code != 0:
                self._drain(run.node, f"Prolog of job {run.job.id} ended with {run.code}")
                job = run.job
                if job.state == "RUNNING" and not job.ends_on and job.restarts == run.number:
                    self.cluster.finish(job, "FAILED", again=job.requeue)

        task.on_end = ended

    def _failed(self, task: NodeTask, what: str) -> None:
        if task.failure is not None:
            self.problems.append(f"{what} ended with {task.failure!r}")

    def _program(self, run: NodeRun, context: str, environment: Mapping[str, str]) -> NodeTask:
        process = self.machines[run.node].spawn(f"/opt/berth/bin/berth-{context}", 0)
        process.environ = {**environment, "SLURM_SCRIPT_CONTEXT": f"{context}_slurmd"}
        return self.tasks.start(f"{context} {run.job.id} {run.node}", process, self.run_program(context))

    def _epilog(self, run: NodeRun) -> None:
        run.phase = "epilog"
        task = self.epilog(run)
        run.epilog, run.began = task, self.tasks.clock.passed

        def ended(task: NodeTask) -> None:
            run.epilog = None
            run.epilog_code = task.result if isinstance(task.result, int) else -9
            self._failed(task, f"the Epilog of job {run.job.id}")
            if run.epilog_code != 0 and not (run.excuse or self.excuse_at(run.node)):
                self.problems.append(f"the Epilog of job {run.job.id} ended with {run.epilog_code}: {self.last(run)}")
            if run.epilog_code != 0:
                self._drain(run.node, f"Epilog of job {run.job.id} ended with {run.epilog_code}")
            run.phase = "over"
            if self.runs.get((run.job.id, run.node)) is run:
                del self.runs[run.job.id, run.node]
            self.past = [*self.past[-40:], run]
            self.on_notice(run, run.epilog_code == 0)

        task.on_end = ended

    def epilog(self, run: NodeRun) -> NodeTask:
        """Start the Epilog of a run; Slurm may repeat it."""
        code = "1:0" if run.job.state in {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY"} else "0:0"
        return self._program(run, "epilog", {**run.environment, "SLURM_JOB_EXIT_CODE2": code})

    def _drain(self, node: str, reason: str) -> None:
        if node in self.cluster.nodes:
            self.cluster.nodes[node].flags.add("DRAIN")
        self.drained[node] = reason

    def _meets_an_owner(self, run: NodeRun) -> bool:
        """Tells whether a guest came with an owner that leaves it no memory, or does not share by MPS as it does.

        Slurm counts seats apart.
        """
        if not run.guest:
            return False
        here = [one for one in self.runs.values() if one.node == run.node and set(one.gpus) & set(run.gpus)]
        if any(one.sharing and not one.guest and leaves_no_memory(one.extra, run.extra) for one in here):
            return True
        files = [(one, self.share_of(one)) for one in here if not one.guest]
        if "way=mps" not in run.job.extra:
            return any(file is not None and file.way == "mps" for _, file in files)
        return any(not one.sharing or (file is not None and file.way == "time") for one, file in files)

    def _meets_apart(self, run: NodeRun) -> bool:
        """Tells whether a node has to refuse a share, as a user who brought MPS down here would share a GPU."""
        others = [
            one.job.user
            for one in self.runs.values()
            if one is not run and one.node == run.node and one.sharing and set(one.gpus) & set(run.gpus)
        ]
        machine, now = self.machines[run.node], self.tasks.clock.passed
        users = {user for user in (run.job.user, *others) if others and run.sharing and not self.was_known(run, user)}
        failed = [self.mps.brought_down.get((machine, machine.boots, user)) for user in users]
        return any(at is not None and now - at < APART_FOR for at in failed)

    # Programs of jobs

    def _begin(self, job: ModelJob, runs: Sequence[NodeRun]) -> None:
        """SPANK looks whether the job has its share on each node; then its programs begin."""
        files = {}
        for run in runs:
            why = ""
            if run.sharing or self.share_of(run) is not None:
                files[run.node], why = self._share(run)
            if why:
                run.stopped = True
                run.excuse = run.excuse or self.excuse_at(run.node)
                if not (run.excuse or self._meets_an_owner(run) or (run.meets_apart and _is_kept_apart(why))):
                    self.problems.append(f"job {job.id} has no share in peace: {why}")
                job.degraded = True
                self.cluster.finish(job, "FAILED")
                return
        job.end = int(self.cluster.now) + job.work
        for run in runs:
            self._launch(run, files.get(run.node))
            self.on_launch(run)

    def share_of(self, run: NodeRun) -> ShareRecord | None:
        """The share file of its job there is now."""
        try:
            return share_file.parse((self.machines[run.node].folder / f"run/berth/jobs/{run.job.id}").read_text())
        except (OSError, NodeError):
            return None

    def _share(self, run: NodeRun) -> tuple[ShareRecord | None, str]:
        file = self.share_of(run)
        if file is None:
            return None, "no share file"
        if file.degraded:
            return file, file.why
        if file.start and file.start != run.start:
            self.problems.append(f"job {run.job.id} runs with the share of its run before")
        pipe = file.environment.get("CUDA_MPS_PIPE_DIRECTORY", "")
        if pipe and (run.node, pipe) not in self.mps.daemons:
            return file, "no MPS daemon"
        return file, ""

    def _launch(self, run: NodeRun, file: ShareRecord | None) -> None:
        run.phase = "runs"
        machine = self.machines[run.node]
        group = machine.make_groups(run.job.id)
        process = machine.spawn("/usr/bin/train", run.job.user)
        machine.join(process, run.job.id, group)
        process.ignores_term = run.job.id % 3 == 0
        run.programs.append(process)
        pipe = file.environment.get("CUDA_MPS_PIPE_DIRECTORY", "") if file is not None else ""
        process.uuids = tuple(machine.gpus[place].uuid for place in run.gpus)
        if pipe and not self.mps.daemons[run.node, pipe].serve(process):
            self._program_fails(process)

    def _program_fails(self, process: ModelProcess) -> None:
        """A job's program lost its GPU: it ends, and its job with it."""
        if process.job is None or process.dead:
            return
        process.end()
        job = self.cluster.jobs.get(process.job)
        if job is not None and job.state == "RUNNING":
            job.fate, job.end = "FAILED", int(self.cluster.now)

    def _end_programs(self, run: NodeRun) -> None:
        for process in run.programs:
            process.end()
        self.machines[run.node].remove_groups(run.job.id)

    def reboot(self, node: str) -> None:
        """A node goes down and comes back: its jobs are lost, its Epilogs never come."""
        self.machines[node].reboot()
        for run in [one for one in self.runs.values() if one.node == node]:
            del self.runs[run.job.id, node]
            run.phase, run.prolog, run.epilog = "over", None, None
            self.past.append(run)
            if run.job.restarts == run.number and run.job.state == "RUNNING" and not run.job.ends_on:
                self.cluster.finish(run.job, "NODE_FAIL", again=run.job.requeue)
            if node in run.job.ends_on:
                self.cluster.epilog_done(run.job.id, node)

    # Slurm's command, and a site's scripts: stands in for prolog_epilog.node.children

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], seconds: float, *, capture: bool = False
    ) -> ProgramEnd:
        """Run a program for one of Berth's."""
        self.kernel.operation()
        if not capture:
            return self._script(command[0], environment, seconds)
        if self.out:
            self.tasks.block(seconds)
            raise TookTooLong(f"{command[0]} did not end within {seconds:.3g} s; find out what it waits for")
        try:
            return ProgramEnd(0, self.answer(tuple(command[1:])))
        except Refusal as refusal:
            return ProgramEnd(1, f"slurm error: {refusal}\n")

    def _script(self, path: str, environment: Mapping[str, str], seconds: float) -> ProgramEnd:
        machine = self.kernel.machine
        self._see(machine, environment)
        if self.script_hangs:
            self.tasks.block(seconds)
            raise TookTooLong(f"{path} did not end within {seconds:.3g} s; find out what it waits for")
        self.tasks.block(0.5)
        return ProgramEnd(1 if machine.name in self.script_fails else 0)

    def _see(self, machine: Machine, environment: Mapping[str, str]) -> None:
        """A site's script is told the GPUs of a job that has them whole: all of them, before it and after it."""
        job, start = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_JOB_START_TIME"])
        found = [one for one in (*self.runs.values(), *self.past) if one.job.id == job and one.node == machine.name]
        run = next((one for one in found if one.start == start), None)
        if run is None or run.sharing or run.job.touched or run.excuse or self.excuse_at(machine.name):
            return
        told, which = environment.get("SLURM_JOB_GPUS", ""), environment["SLURM_SCRIPT_CONTEXT"].partition("_")[0]
        named = run.environment.get("SLURM_JOB_GPUS", "")
        minors = [str(machine.gpus[place].minor) for place in run.gpus]
        allowed = [",".join(minors)]
        # The GPUs of an ended run may have had other numbers before its node was booted.
        if _is_forgotten(run, which) or (run.phase == "over" and minors[-1:] != [named]):
            allowed.append(named)
        if told not in allowed:
            self.problems.append(f"a script behind the {which} of job {job} is told GPU {told!r}, not {run.gpus}")

    def answer(self, words: tuple[str, ...]) -> str:
        """What scontrol prints."""
        match words:
            case ("show", "config"):
                return "SlurmUser               = slurm(64030)\n"
            case ("show", "job", name, *more):
                if not (found := self._named(name)):
                    raise Refusal("Invalid job id specified")
                return "\n".join(self._record(job, detailed=bool(more)) for job in found)
            case ("update", node, "State=DRAIN", reason):
                self._drain(node.removeprefix("NodeName="), reason.removeprefix("Reason="))
            case ("requeue", "Incomplete", number):
                self.cluster.requeue(number, incomplete=True)
            case ("requeue", number):
                self.cluster.requeue(number, incomplete=False)
            case ("requeuehold", "Incomplete", number):
                self.cluster.requeue(number, incomplete=True, hold=True)
            case _:
                raise AssertionError(f"the model knows no such command: {words}")
        return ""

    def _named(self, name: str) -> list[ModelJob]:
        """The records that scontrol shows: an array's number means all that it has."""
        number, _, task = name.partition("_")
        jobs = self.cluster.jobs
        array = [job for job in jobs.values() if job.array == int(number)]
        if task:
            return [job for job in array if str(job.task) == task or int(task) in job.tasks]
        return array or ([jobs[int(number)]] if int(number) in jobs else [])

    def _record(self, job: ModelJob, *, detailed: bool) -> str:
        tasks = job.task if job.task is not None else ",".join(map(str, job.tasks))
        array = f"ArrayJobId={job.array} ArrayTaskId={tasks} " if job.array else ""
        lines = [
            f"JobId={job.id} {array}JobName={job.name}",
            f"   UserId=u({job.user}) GroupId=u({job.user}) MCS_label=N/A",
            f"   JobState={job.shown} Reason={job.reason} Dependency=(null)",
            f"   NodeList={','.join(job.nodes) or '(null)'}",
        ]
        had = {(run.job.id, run.node): run.portion for run in (*self.past, *self.runs.values())}
        held = {
            name: self.cluster.nodes[name].held.get(job.id) or had.get((job.id, name))
            for name in job.nodes
            if name in self.cluster.nodes
        }
        if detailed and any(held.values()):
            found = {name: detail(one) for name, one in held.items() if one is not None}
            # At a job's end Slurm has forgotten the GPUs of each node, and keeps their sum.
            is_over = bool(job.ends_on) or job.over
            lines += ["   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*", f"   JOB_GRES={_sum(found.values())}"]
            places_of = {name: "" if is_over else gres for name, gres in found.items()}
            lines += [f"     Nodes={name} CPU_IDs=0 Mem=100 GRES={gres}" for name, gres in places_of.items()]
        lines += ["   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0", f"   AdminComment={job.admin_comment}"]
        return "\n".join(lines) + "\n"


def _is_kept_apart(why: str) -> bool:
    """Tells whether a share was refused for a user who brought MPS down, and for nothing else."""
    return "brought MPS down here lately" in why


def _is_forgotten(run: NodeRun, context: str) -> bool:
    """Tells whether Slurm may name no GPUs of a run's node but the last.

    Its Extra does not tell them. Its job has ended, and had several nodes, or has been put back into the queue since.
    Its Prolog has kept them for its first Epilog, if it was told them itself.
    """
    if run.berth is not None or not run.ends:
        return False
    is_on_several = "," in run.environment["SLURM_JOB_NODELIST"]
    return run.phase == "over" or (is_on_several and (context == "prolog" or not run.was_ready))


def _sum(details: Iterable[str]) -> str:
    """The GRES of all nodes by type: `gpu:g0:2`."""
    counts = Counter[str]()
    for kind, count in re.findall(r"(\w+:g\d+):(\d+)", ",".join(details)):
        counts[kind] += int(count)
    return ",".join(f"{kind}:{count}" for kind, count in counts.items())
