# SPDX-License-Identifier: Apache-2.0
"""The command `berth doctor release`: tries one held job of each form on a release of Slurm that no test has run on.

Each job is submitted with `--hold`, read back field by field, given a place as berthd would give it, read back again,
and cancelled. None of them starts.
"""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from policy.cli.output import tell_checks
from policy.formats import hostlist
from policy.formats.errors import BerthError, SlurmError
from policy.formats.job_plan import JobPlan, readable
from policy.formats.plan_fields import GPUS, LAYOUT, NODES, PLACED, PLAIN, SEATS, STATE
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, Reading
from policy.site.config import Config
from policy.slurm import fields
from policy.slurm.by_command.command import run_command
from policy.slurm.interface import Gateway, Pin
from policy.slurm.releases import TRIED, note_tried, why_only_watched

_LISTED_WITHIN = 20.0
"""Seconds within which a held job must be listed, or be gone."""
_LIMIT = 60

Trouble = Iterator[str]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask for GPUs, and the facts that Slurm's record must have."""

    name: str
    words: tuple[str, ...]
    asks_by: str
    """The field of the record that has the request."""
    nodes: int = 1
    jobs: int = 1
    facts: Mapping[str, object] = field(default_factory=dict)
    is_placed: bool = True
    """False for a form that berthd can place only with fields that its plugin writes at submission."""


_SCRIPT = ("--wrap", "true")
_PARTS_BEGIN = frozenset({"sbatch", "srun", "salloc", ":"})
FORMS = (
    Form("sbatch --gres", ("sbatch", "--gres=gpu:1", *_SCRIPT), "tres_per_node"),
    Form("sbatch --gpus", ("sbatch", "--gpus=1", *_SCRIPT), "tres_per_job"),
    Form("sbatch --gpus-per-node", ("sbatch", "-N2", "--gpus-per-node=1", *_SCRIPT), "tres_per_node", nodes=2),
    Form("sbatch --gpus-per-task", ("sbatch", "-n1", "--gpus-per-task=1", *_SCRIPT), "tres_per_task", is_placed=False),
    Form("an array", ("sbatch", "--array=0-3", "--gres=gpu:1", *_SCRIPT), "tres_per_node", facts={"tasks": "0-3"}),
    Form("a heterogeneous job", ("sbatch", "--gres=gpu:1", ":", "--gres=gpu:1", *_SCRIPT), "tres_per_node", jobs=2),
    Form("srun", ("srun", "--gres=gpu:1", "true"), "tres_per_node"),
    Form("salloc", ("salloc", "--gres=gpu:1", "true"), "tres_per_node"),
)


def run(options: argparse.Namespace, config: Config, gateway: Gateway, tried: Path = TRIED) -> int:
    """Tries all forms; exit status 1 if one is not read as it was submitted."""
    reading = gateway.read(ended=False)
    version = reading.version or gateway.version()
    if not why_only_watched(version, tried):
        # berthd would give the jobs places during the test.
        raise BerthError(f"Slurm {version} needs no trial; to try it again take its line out of {tried} first")
    nodes, partition = _where(reading, config)
    forms = [form for form in FORMS if form.nodes <= len(nodes)]
    found = {form.name: "; ".join(_tried(form, gateway, nodes, partition)) for form in forms}
    if not any(found.values()):
        try:
            note_tried(version, tried)
        except OSError as problem:
            raise BerthError(f"{tried} cannot be written ({problem.strerror}); run this as root or SlurmUser") from None
    return tell_checks(options, ((name, not wrong, wrong or _WELL) for name, wrong in found.items()), "forms")


_WELL = "read as it was submitted, and cancelled"


def _where(reading: Reading, config: Config) -> tuple[Sequence[NodeFacts], str]:
    """Returns GPU nodes of one partition of Berth's, the default one if it has some."""
    partitions = sorted(reading.partitions, key=lambda one: (not one.default, one.name))
    for partition in partitions:
        nodes = [one for one in reading.nodes if partition.name in one.partitions and (one.gpus or one.loose)]
        if nodes and partition.name not in config.skip_partitions:
            return nodes, partition.name
    raise BerthError("no partition that Berth looks at has a node with GPUs; nothing can be tried")


def _tried(form: Form, gateway: Gateway, nodes: Sequence[NodeFacts], partition: str) -> Trouble:
    name = f"berth-doctor-{os.getpid()}-{FORMS.index(form)}"
    # Each part of a heterogeneous job needs the name and the limit.
    common = ("--hold", f"--job-name={name}", f"--partition={partition}", "--time=1")
    words = [word for one in form.words for word in ((one, *common) if one in _PARTS_BEGIN else (one,))]
    submitted = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    jobs: Sequence[JobFacts] = ()
    try:
        jobs = _listed(gateway, name, form.jobs, submitted)
        for job in jobs:
            yield from _wrong_facts(form, job, partition)
            yield from _wrong_request(form, gateway.job(job.id))
            if form.is_placed:
                yield from _wrong_place(form, gateway, job, nodes)
    except BerthError as problem:
        yield str(problem)
    finally:
        run_command("scancel", f"--name={name}")
        submitted.kill()
        submitted.communicate()
    if not jobs:
        return
    try:
        _until(gateway, lambda left: not left, name)
    except BerthError as problem:
        yield f"cancelled, and {problem}"


def _listed(gateway: Gateway, name: str, count: int, submitted: "subprocess.Popen[bytes]") -> Sequence[JobFacts]:
    def is_there(found: Sequence[JobFacts]) -> bool:
        if submitted.poll():
            said = submitted.stderr.read().decode("utf-8", "replace").strip() if submitted.stderr else ""
            raise SlurmError(f"Slurm did not take it: {said}")
        return len(found) == count

    return _until(gateway, is_there, name)


def _until(gateway: Gateway, is_so: Callable[[Sequence[JobFacts]], bool], name: str) -> Sequence[JobFacts]:
    until = time.monotonic() + _LISTED_WITHIN
    while True:
        found = [job for job in gateway.read(ended=False).jobs if job.name == name]
        if is_so(found):
            return found
        if time.monotonic() > until:
            raise SlurmError(f"{len(found)} such jobs are listed")
        time.sleep(0.2)


def _wrong_facts(form: Form, job: JobFacts, partition: str) -> Trouble:
    wanted = {
        "partition": partition,
        "limit": _LIMIT,
        "count": form.nodes,
        "user": os.geteuid(),
        "wants_gpus": True,
        "gpus": None,
        "required": (),
        "nodes": (),
        "reason": "JobHeldUser",
        **form.facts,
    }
    for key, value in wanted.items():
        if getattr(job, key) != value:
            yield f"{key} is {getattr(job, key)!r}, not {value!r}"
    if job.state not in ("PENDING", "ARRAY"):
        yield f"state is {job.state}, not PENDING"
    if form.jobs > 1 and not job.het:
        yield "it is read as no part of a heterogeneous job"


def _wrong_request(form: Form, text: JobText) -> Trouble:
    request = getattr(text, form.asks_by)
    if not fields.wants_gpus((request,)):
        yield f"{form.asks_by} is {request!r}, which names no GPU"
    if text.user_id != os.geteuid():
        yield f"user_id is {text.user_id}, not {os.geteuid()}"


def _wrong_place(form: Form, gateway: Gateway, job: JobFacts, nodes: Sequence[NodeFacts]) -> Trouble:
    """Gives a held job a place, and yields what is wrong in Slurm's record then."""
    names = tuple(node.name for node in nodes[: form.nodes])
    typed = all(node.gpus for node in nodes[: form.nodes])
    plan = JobPlan.of(STATE(PLACED), NODES(names), GPUS((0,)), SEATS(value=False))
    plan = plan if typed else plan.having(LAYOUT(PLAIN))
    gateway.pin(job.id, Pin(names, (0,), seats=False, plan=plan))
    text = gateway.job(job.id)
    if hostlist.expand(text.required) != names:
        yield f"required nodes are {text.required!r}, not {','.join(names)!r}"
    found = readable(text.admin_comment)
    if found is None or found.get(NODES) != names:
        yield f"admin_comment is {text.admin_comment!r}, without the plan that was written"
    request = ",".join(filter(None, (text.tres_per_node, text.tres_per_job)))
    if typed and fields.typed_gpus(request) != 1:
        yield f"the request is {request!r}, and does not name GPU 0"
