# SPDX-License-Identifier: Apache-2.0
"""Plays a script on both sides, a step at a time, and waits until both agree.

Whom Slurm starts first, and which of equal GPUs it takes, is left to Slurm: the model starts what Slurm has started, if
it allows that at all. Whom the model's strict pass would start has to start in Slurm too.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterable

from policy.formats import segment
from policy.formats.errors import BerthError, SlurmError
from policy.formats.job_plan import JobPlan
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.changes import target
from policy.slurm.interface import Pin
from tests.world import commands, people
from tests.world.beside import submit
from tests.world.beside.compare import View, differences, view
from tests.world.beside.real import RealSlurm, sentence
from tests.world.cluster import ModelCluster, ModelJob, ModelNode, Portion, Refusal
from tests.world.script import Step

NO_JOB = 4_000_000
NODES = (("n1", "v100"), ("n2", "h100"), ("n3", "a6000"), ("n4", "l40s"))
SETTLES = 30.0
"""Seconds within which both must agree; most steps take one."""


class DifferenceError(AssertionError):
    """The model and Slurm disagree."""


class BothSides:
    """A model and a cluster that begin alike: all nodes idle, no job."""

    def __init__(self, real: RealSlurm, users: dict[str, int], version: str, settles: float = SETTLES) -> None:
        self.real, self.users = real, users
        self.model = ModelCluster((ModelNode(name, 8, 16, 64_000, features=has) for name, has in NODES), version)
        self.model.counts_models = True
        self.first = 0
        self.closed: set[str] = set()
        self.failing: set[str] = set()
        self.settles = settles
        self.lingers = 2.5
        self.steps = self.commands = 0
        self.other_words: list[str] = []
        """Commands that one side did and the other did not, or refused in other words."""
        self.gateways = CommandGateway(self.on_model), CommandGateway(real.gateway)

    def play(self, script: Iterable[Step]) -> None:
        """All steps; a `DifferenceError` tells the first disagreement."""
        self.real.begin()
        for step in script:
            self.steps += 1
            try:
                self._do(step)
                self.settle()
            except DifferenceError as problem:
                raise DifferenceError(self._told(f"step {self.steps}, {step}: {problem}")) from None
        # A start that comes a moment later would not have been seen.
        time.sleep(self.lingers)
        self.settle()
        if self.other_words:
            raise DifferenceError(self._told(""))

    def _told(self, problem: str) -> str:
        return "\n    ".join([*self.other_words, problem])

    # Both

    def settle(self) -> None:
        """Wait until both agree, and nobody is left who must start."""
        until = time.monotonic() + self.settles
        while True:
            self._pass_epilogs()
            problem = self._disagreement()
            if not problem:
                return
            if time.monotonic() > until:
                raise DifferenceError(problem)
            time.sleep(0.2)

    def _disagreement(self) -> str:
        real = view(self.real.gateway, self.first) if self.first else {}
        if not real:
            return ""
        try:
            self._follow(real)
        except DifferenceError as problem:
            return str(problem)
        self._now()
        for job in self.model.order():
            if self.model._may_start(job):
                job.reason = "Resources"
        found = differences(view(self.on_model, self.first), real)
        if found:
            return "\n    ".join(["", *found])
        ahead = copy.deepcopy(self.model)
        ahead.started.clear()
        ahead.schedule(strict=True)
        if ahead.started:
            return f"the model starts job {ahead.started[0][0].id}, Slurm does not"
        return ""

    def _follow(self, real: View) -> None:
        """Start in the model what has started in Slurm; tasks that split off by it come first, in their order."""
        running = [
            (int(key[4:]), one)
            for key, one in real.items()
            if key.startswith("job ") and one["nodes"] and one.get("record gres") is not None
        ]
        for number, one in sorted(running, key=lambda pair: (pair[0] in self.model.jobs, pair[0])):
            job = self.model.jobs.get(number)
            if job is None:
                job = next((j for j in self.model.jobs.values() if j.waits and j.array and j.array == one["array"]
                            and one["task"] in j.tasks), None)  # fmt: skip
            if job is None or not job.waits or job.restarts != one["record restart_cnt"]:
                continue
            if number in self.model.jobs and job.tasks and one["task"] is None:
                continue
            self._start(job, number, one)

    def _start(self, job: ModelJob, number: int, one: View) -> None:
        self._now()
        cpus = -(-job.cpus // job.n)
        wants, found = job.portion(), dict[str, Portion]()
        holds = one["holds"] or (0,) * len(one["nodes"])
        for name, mask in zip(one["nodes"], holds, strict=False):
            found[name] = wants or Portion(mask, cpus=cpus, mem=100 * cpus)
        why = self._forbids(job, found)
        if why:
            raise DifferenceError(f"Slurm starts job {number} on {','.join(found)}, in the model {why}")
        if job.tasks:
            job.tasks.remove(one["task"])
            job.tasks.insert(0, one["task"])
        self.model._start(job, found)

    def _forbids(self, job: ModelJob, found: dict[str, Portion]) -> str:
        if not self.model._may_start(job):
            return f"it may not start: {job.reason}"
        for name, portion in found.items():
            node = self.model.nodes[name]
            if not node.open:
                return f"{name} is {node.state}"
            if not node.fits(portion):
                return f"{name} has no room for {portion}: {node.held}"
            if not job.portion() and portion.gpus.bit_count() != job.counted():
                return f"it asks for {job.counted()} GPUs, not {portion.gpus:b}"
        if len(found) != job.n:
            return f"it asks for {job.n} nodes"
        required, excluded = (set(filter(None, text.split(","))) for text in (job.req_nodes, job.exc_nodes))
        return (
            f"it requires {required}, and not {excluded}" if required - found.keys() or excluded & found.keys() else ""
        )

    def _now(self) -> None:
        self.model.now = time.time()

    def _pass_epilogs(self) -> None:
        for job in list(self.model.jobs.values()):
            for name in sorted(job.ends_on - self.closed):
                self.model.epilog_done(job.id, name, failed=name in self.failing)

    def on_model(self, *words: str) -> bytes:
        """A command on the model, as `run_command` does it."""
        self._now()
        try:
            return commands.answer(self.model, words).encode("utf-8", "surrogateescape")
        except Refusal as refusal:
            raise SlurmError(f"{' '.join(words[:3])} failed: slurm error: {refusal}") from None

    def _both(self, *words: str) -> None:
        """One command on both; they must agree on whether it is done, and in what words it is not."""
        said = []
        number = next((word.removeprefix("JobId=") for word in words if re.fullmatch(r"(JobId=)?\d+", word)), "0")
        several = sum(job.array == int(number) > 0 for job in self.model.jobs.values()) > 1
        for run in (self.on_model, self.real.gateway):
            try:
                run(*words)
            except SlurmError as problem:
                said.append(sentence(str(problem)))
            else:
                said.append("done")
        self.commands += 1
        if several and "done" not in said:
            return  # each record has its own words, and scontrol prints them in an order of its own
        if said[0] != said[1]:
            self.other_words.append(f"`{' '.join(words)}`: {said[0]!r} in the model, {said[1]!r} in Slurm")

    # Steps

    def _do(self, step: Step) -> None:
        name, *rest = step
        match name, *rest:
            case "submit", str(kind), int(size):
                self._submit(kind, size)
            case "ends", int(number), int(code):
                self._ends(number, code)
            case "update", str(change), int(number), str(form):
                if job := self._pick(number):
                    self._both(
                        "scontrol",
                        "update",
                        f"JobId={self._named(job, form, nodes='NodeList' in change)}",
                        *change.split(" "),
                    )
            case "people", str(verb), int(number), str(form):
                if job := self._pick(number):
                    self._both(*_words(verb, self._named(job, form)))
            case "gateway", str(call), int(number):
                if job := self._pick(number):
                    self._call(call, job)
            case "node", str(verb), int(number):
                self._both("scontrol", "update", f"NodeName=n{number}", f"State={verb.upper()}", "Reason=test")
            case "partition", str(state):
                self._both("scontrol", "update", "PartitionName=gpu", f"State={state}")
            case "gate", str(state), int(number):
                self._gate(f"n{number}", state)
            case _:
                raise AssertionError(f"no such step: {step}")

    def _gate(self, node: str, state: str) -> None:
        self.real.gate(node, state)
        for names, what in ((self.closed, "close"), (self.failing, "fail")):
            (names.add if state == what else names.discard)(node)

    def _pick(self, number: int) -> ModelJob | None:
        jobs = list(self.model.jobs.values())
        return jobs[number % len(jobs)] if jobs else None

    def _named(self, job: ModelJob, form: str, *, nodes: bool = False) -> str:
        if form == "none":
            return str(NO_JOB)
        if form == "number" or not job.array:
            return str(job.id)
        if job.task is not None:
            return f"{job.array}_{job.task}"
        return f"{job.array}_[{','.join(map(str, job.tasks))}]" if not nodes else f"{job.array}_{job.tasks[0]}"

    def _submit(self, kind: str, size: int) -> None:
        user = submit.USERS[size % len(submit.USERS)]
        if kind == "expedite" and self.model.version < "25.11":
            kind = "whole"
        said = self.real.submit(submit.options(kind, size), user)
        self._now()
        if isinstance(said, str):
            if self.model.partition_state in {"UP", "DOWN"}:
                raise DifferenceError(f"Slurm does not take the job: {said}")
            return
        if self.model.partition_state not in {"UP", "DOWN"}:
            raise DifferenceError("Slurm takes a job, though its partition takes none")
        if not self.first:
            self.first = self.model.next_id = said
        if said != self.model.next_id:
            raise DifferenceError(f"the job's number is {self.model.next_id} in the model, {said} in Slurm")
        self.model.add(submit.record(said, self.users[user], kind, size))
        text = segment.put(
            "", {"state": "later", "id": f"{said:016x}", "n": "1", "k": "1", "asked": "tres_per_node:gres/gpu:1"}
        )
        self._both("scontrol", "update", f"JobId={said}", f"AdminComment={text}")

    def _ends(self, number: int, code: int) -> None:
        running = [job for job in self.model.jobs.values() if job.state == "RUNNING" and not job.ends_on]
        if not running:
            return
        job = running[number % len(running)]
        self.real.end(job.id, job.restarts, code)
        self._now()
        people.exits(self.model, job, code)

    def _call(self, call: str, job: ModelJob) -> None:
        """One of the gateway's calls on both sides."""
        if job.tasks and call in {"evict", "cancel", "warn"}:
            return  # berthd makes these of jobs that run alone
        said: list[str] = []
        for gateway in self.gateways:
            reading = gateway.read(ended=False)
            facts = next((one for one in reading.jobs if one.id == job.id), None)
            name = target(facts) if facts else job.id
            try:
                said.append(f"returns {_CALLS[call](gateway, name, job.id)}")
            except BerthError as problem:
                said.append(sentence(str(problem)))
        self.commands += 1
        if said[0] != said[1]:
            self.other_words.append(f"gateway.{call}({name}): {said[0]!r} in the model, {said[1]!r} in Slurm")


def _words(verb: str, name: str) -> tuple[str, ...]:
    return {
        "cancel": ("scancel", name),
        "signal": ("scancel", "--ctld", "-s", "USR1", name),
        "incomplete": ("scontrol", "requeue", "Incomplete", name),
    }.get(verb, ("scontrol", verb, name))


_PLACED = {"state": "placed", "id": "00", "n": "1", "k": "1", "asked": "tres_per_node:gres/gpu:1", "why": "50 % [x]"}
_LATER = {"state": "later", "id": "00", "n": "1", "k": "1", "asked": "tres_per_node:gres/gpu:1", "parked": "0"}

_CALLS: dict[str, Callable[[CommandGateway, int | str, int], object]] = {
    "pin": lambda gateway, name, _: gateway.pin(
        name, Pin(("n3",), (1,), seats=True, plan=JobPlan(_PLACED), licenses={"berth_h100": 1})
    ),
    "pin-unknown-licence": lambda gateway, name, _: gateway.pin(
        name, Pin(("n2",), (1,), seats=True, plan=JobPlan(_PLACED), licenses={"berth_none": 1})
    ),
    "pin-share": lambda gateway, name, _: gateway.pin(
        name, Pin(("n2",), (5,), seats=False, plan=JobPlan({**_PLACED, "share": "40"}), share=40, others="n[1,3-4]")
    ),
    "pin-guest": lambda gateway, name, _: gateway.pin(
        name, Pin(("n1",), (2,), seats=True, plan=JobPlan({**_PLACED, "tier": "opportunistic"}))
    ),
    "release": lambda gateway, name, _: gateway.release(name, "because"),
    "annotate": lambda gateway, _, number: gateway.annotate(number, JobPlan({"state": "noted"})),
    "delay": lambda gateway, _, number: gateway.delay(number, JobPlan(_LATER), 600),
    "park": lambda gateway, name, _: gateway.park(name, JobPlan(_LATER), 600),
    "cancel": lambda gateway, _, number: gateway.cancel(number),
    "annotate-requeue": lambda gateway, _, number: gateway.annotate(number, JobPlan({"state": "noted"}), requeue=True),
    "evict": lambda gateway, _, number: gateway.evict(number),
    "requeue": lambda gateway, name, _: gateway.requeue(name),
    "warn": lambda gateway, _, number: gateway.warn(number, "USR1"),
}
