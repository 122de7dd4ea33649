# SPDX-License-Identifier: Apache-2.0
"""A submit request: what belongs to one job alone, and the GPU request, in one form for all ways to write it.

Requests that Berth cannot yet place better than Slurm raise `LeftToSlurm` with the reason. A job that ran before may
not be refused because of Berth.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.formats import flags as flag_table
from policy.formats import hostlist
from policy.formats.errors import FormatError, LeftToSlurm, Never
from policy.formats.job_plan import JobPlan, Pairs, flag
from policy.formats.plan_fields import SIGNAL
from policy.formats.slurm_facts import Memory
from policy.formats.wire import number, whole
from policy.request.constraint import conditions

ASKED_KEYS = ("tres_per_job", "tres_per_node", "tres_per_task", "cpus_per_tres", "ntasks_per_tres", "req_nodes")

WAS_KEYS = ("num_tasks", "min_nodes", "max_nodes", "cpus_per_task", "pn_min_cpus", "mem_per_tres", "no_requeue")
"""Keys that a pin may replace beside these: kept for an owner who changes the request, and for a guest's own GPU."""

_GPUS = re.compile(r"gres/gpu(?:[:=]([0-9]{1,6}))?")
_SIGNAL = re.compile(r"(B:)?[1-9][0-9]?")
_NOT_OF_A_KIND = frozenset({"nonce", "uid", "begin", "name", "extra_bytes", "preflight"})

Kind = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """A GPU request in one form. Exactly one of `total` and `per_node` is given."""

    total: int | None = None
    per_node: int | None = None
    per_task: int | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    min_cpus: int = 0
    min_cpus_per_node: int = 0
    cpus_per_gpu: int = 0
    threads_per_core: int | None = None
    """Threads that it uses of each core; None: all."""
    tasks_per_core: int | None = None
    tied: bool = False
    """True if CPUs or tasks are requested per GPU: a pin removes that relation and has to replace it."""
    memory: Memory | None = None
    whole_memory: bool = False
    whole_nodes: bool = False
    enforce_binding: bool = False
    """True if Slurm gives it only cores of the sockets of its GPUs (`--gres-flags=enforce-binding`)."""
    partition: str | None = None
    features: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    limit: int | None = None
    locality: flag_table.Locality | None = None
    group: int | None = None
    """GPUs of a group, each of which has to lie in one NVLink domain; None: all of its GPUs are one group."""
    switches: int | None = None
    """Most leaves that its nodes may be in (`--switches`), while it waits for that."""
    switch_wait: int | None = None
    """Seconds of that wait; None: as long as the site allows."""
    share: int | None = None
    """Percent of each GPU; None for whole ones."""
    gpu_mem: int | None = None
    """MiB of each GPU that a packed job, a host or a guest asks for."""
    account: str = ""
    qos: str = ""
    admitted: frozenset[str] | None = None
    """Partitions, of several, that admit its user's groups; None if slurmctld did not say."""
    batch: bool = True
    """True if it has a script, and so can be requeued."""
    no_requeue: bool = False
    """True if its user forbids that it is requeued."""
    het: bool = False
    array: bool = False
    signal: str = ""
    """Number of the signal before its end (`--signal`), with `B:` in front if it is for the script's shell."""
    later: bool = False
    """True if it may not start yet: held, with a later begin time, or dependent on other jobs."""
    asked: Pairs = ()
    was: Pairs = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> JobPlan:
        """Returns what the plan keeps of the user's flags."""
        signal = self.signal if self.signal and "movable" in self.flags else None
        return JobPlan.of(*(flag(name)(value) for name, value in self.flags.items()), SIGNAL(signal))


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit request. Its GPU request is read when it is asked for: users submit the same few kinds again."""

    nonce: str
    texts: Mapping[str, str] = field(repr=False)
    """The request as it was sent, for `Submission.request` alone."""
    uid: int = 0
    name: str = ""
    begin: int = 0
    minutes: int | None = None
    """Time limit."""
    gpus: int | None = None
    """GPUs of the whole job, as the plugin counted them; None if the request names none."""
    extra_bytes: int = 0
    """Length of the user's own Extra."""
    preflight: str = ""
    """`run` for a pre-flight, or the number of the job's own."""
    test: bool = False
    """True if the user only asks, and does not submit."""
    waits: bool = False
    """True if it may not start yet, whatever is free."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Berth's flags, checked."""
    wrong: FormatError | None = None
    """The fault, if the request cannot be read: then nothing else of it was read."""
    wrong_flag: bool = False

    @property
    def kind(self) -> Kind:
        """Returns all that jobs of one kind have in common, but for their time limit."""
        kind = {item for item in self.texts.items() if item[0] not in _NOT_OF_A_KIND}
        if self.minutes is not None:
            kind.discard(("time_limit", self.texts["time_limit"]))
        if "begin" in self.texts:
            kind.add(("begin", ""))
        return frozenset(kind)

    @property
    def later(self) -> bool:
        """Tells whether it names a begin time."""
        return "begin" in self.texts

    @property
    def batch(self) -> bool:
        """Tells whether it has a script, and so can be requeued and changed while it waits."""
        return self.texts.get("client") == "batch"

    @property
    def excludes(self) -> bool:
        """Tells whether its user excludes nodes."""
        return bool(self.texts.get("exc_nodes"))

    @property
    def partition(self) -> str | None:
        """Returns the partitions that its user names."""
        return self.texts.get("partition")

    @property
    def length(self) -> int:
        """Returns the number of characters of the request."""
        return sum(map(len, self.texts.values()))

    def request(self) -> Request:
        """Reads its GPU request; LeftToSlurm, Never and FormatError pass through."""
        if self.wrong is not None:
            raise self.wrong
        return read_request(self.texts, self.flags)


Readers = Mapping[str, tuple[str, Callable[[str, str], object]]]
"""By field: the attribute that has its value, and how its text is read; one that is left out keeps its default."""


def _values(texts: Mapping[str, str], readers: Readers) -> dict[str, Any]:
    return {name: read(key, texts[key]) for key, (name, read) in readers.items() if key in texts}


def _text(_key: str, value: str) -> str:
    return value


def _there(_key: str, _value: str) -> bool:
    return True


_OF_ONE_JOB: Readers = {
    "uid": ("uid", whole),
    "name": ("name", _text),
    "begin": ("begin", whole),
    "time_limit": ("minutes", whole),
    "extra_bytes": ("extra_bytes", whole),
    "preflight": ("preflight", _text),
    "test": ("test", _there),
}

_OF_REQUEST: Readers = {
    "num_tasks": ("tasks", whole),
    "ntasks_per_node": ("tasks_per_node", lambda key, value: whole(key, value) or None),
    "cpus_per_task": ("cpus_per_task", lambda key, value: whole(key, value) or 1),
    "min_cpus": ("min_cpus", whole),
    "pn_min_cpus": ("min_cpus_per_node", whole),
    "threads_per_core": ("threads_per_core", whole),
    "ntasks_per_core": ("tasks_per_core", whole),
    "exclusive": ("whole_nodes", _there),
    "enforce_binding": ("enforce_binding", _there),
    "partition": ("partition", lambda _, value: ",".join(dict.fromkeys(value.split(",")))),
    "features": ("features", lambda _, value: conditions(value)),
    "exc_nodes": ("excluded", lambda _, value: hostlist.expand_short(value)),
    "time_limit": ("limit", lambda key, minutes: 60 * whole(key, minutes)),
    "switches": ("switches", whole),
    "switch_wait": ("switch_wait", whole),
    "account": ("account", _text),
    "qos": ("qos", _text),
    "admitted": ("admitted", lambda _, value: frozenset(value.split(","))),
    "client": ("batch", lambda _, value: value == "batch"),
    "no_requeue": ("no_requeue", _there),
    "het": ("het", _there),
    "array": ("array", _there),
    "signal": ("signal", lambda _, value: value if _SIGNAL.fullmatch(value) else ""),
}

_OF_FLAGS: Readers = {
    "locality": ("locality", lambda _, value: flag_table.parse_locality(value)),
    "group": ("group", lambda _, value: int(value)),
    "gpu-mem": ("gpu_mem", lambda _, value: flag_table.mebibytes(value)),
}


def read(texts: Mapping[str, str]) -> Submission:
    """Reads a submit request; a wrong one too, so that it can be answered."""
    nonce = texts["nonce"]
    try:
        flags = _flags_of(texts)
    except FormatError as problem:
        return Submission(nonce, texts, wrong=problem, wrong_flag=True)
    try:
        return Submission(
            nonce,
            texts,
            **_values(texts, _OF_ONE_JOB),
            gpus=number(texts, "gpus") if _names_gpus(texts) else None,
            waits=not texts.keys().isdisjoint(("held", "dependency", "array")),
            flags=flags,
        )
    except FormatError as problem:
        return Submission(nonce, texts, flags=flags, wrong=problem)


def read_request(fields: Mapping[str, str], flags: Mapping[str, str]) -> Request:
    """Reads the GPU request of a submit request, whose `flags` are read."""
    share = flag_table.percent(flags["gpu-share"]) if "gpu-share" in flags else None
    if share is not None:
        _refuse_what_no_share_can_be(fields, flags)
    _refuse_what_only_slurm_can(fields)
    nodes = _node_count(fields)
    only = tuple(dict.fromkeys(hostlist.expand_short(fields["req_nodes"]))) if "req_nodes" in fields else ()
    total, per_node, per_task = (None, 1, None) if share and not _names_gpus(fields) else _gpus(fields, nodes)
    if nodes is None and len(only) > 1:
        nodes = len(only)
    if only and len(only) != (nodes or 1):
        raise LeftToSlurm(f"--nodelist names {len(only)} nodes for a job of {nodes or 1}", 208)
    cpus_per_gpu = _counted(fields, "cpus_per_tres") or 0
    whole_memory = fields.get("mem_per_node") == "0"
    return Request(
        total=total,
        per_node=per_node,
        per_task=per_task,
        nodes=nodes,
        cpus_per_gpu=cpus_per_gpu,
        tied=bool(cpus_per_gpu or per_task or "ntasks_per_tres" in fields),
        memory=None if whole_memory else _memory(fields),
        whole_memory=whole_memory,
        only=only,
        share=share,
        later=not fields.keys().isdisjoint(("held", "begin", "dependency")),
        asked=tuple([(key, fields[key]) for key in ASKED_KEYS if key in fields]),
        was=tuple([(key, fields[key]) for key in WAS_KEYS if key in fields]),
        flags=flags,
        **_values(fields, _OF_REQUEST),
        **_values(flags, _OF_FLAGS),
    )


def _flags_of(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the Berth flags of a request, checked; names with `-`, as the user wrote them."""
    flags = {
        key.removeprefix("flag.").replace("_", "-"): value for key, value in fields.items() if key.startswith("flag.")
    }
    if flags:
        flag_table.check(flags)
    return flags


def _names_gpus(fields: Mapping[str, str]) -> bool:
    """Tells whether a request gives a number of GPUs; with --gpu-share alone it is one on each node."""
    return any("gres/gpu" in fields.get(key, "") for key in ("tres_per_job", "tres_per_node", "tres_per_task"))


def _refuse_what_no_share_can_be(fields: Mapping[str, str], flags: Mapping[str, str]) -> None:
    named = f"--gpu-share={flags['gpu-share']}"
    if "exclusive" in fields:
        raise Never(f"{named} takes a part of a GPU, --exclusive whole nodes: leave one of them out", 402)
    if "gpu-tier" in flags:
        raise Never(
            f"{named} packs the job beside others, --gpu-tier={flags['gpu-tier']} is for jobs with whole GPUs and "
            f"their guests: leave one of them out",
            402,
        )


_ONLY_SLURM_CAN = {
    "reservation": "within a reservation Slurm chooses",
    "prefer": "--prefer is Slurm's own soft choice of nodes; -C is a condition that Berth obeys",
    "tres_per_socket": "--gpus-per-socket depends on the sockets that Slurm uses; --gpus-per-node does not",
    "sockets_per_node": "a request by sockets depends on the sockets that Slurm uses; -c and --gpus do not",
}
_INSTEAD = {
    "--contiguous": "--locality=leaf keeps the nodes of a job near each other",
    "--spread-job": "-N with --ntasks-per-node spreads a job",
    "--use-min-nodes": "-N with one number is obeyed",
    "-N LIST": "-N with one number is obeyed",
    "--tmp": "-C with a feature of nodes that have the space is obeyed",
    "--core-spec": "CoreSpecCount of the nodes in slurm.conf keeps cores free for all jobs",
    "--segment": "--locality=nvlink keeps a job within an NVLink domain",
    "--cores-per-socket": "-C with a feature of such nodes is obeyed",
    "--ntasks-per-socket": "--ntasks-per-node is obeyed",
    "--exclusive=user": "--exclusive takes whole nodes",
    "--overcommit": "-c with fewer tasks is obeyed",
    "--gpu-bind": "sbatch with srun in its script may bind",
    "--time-min": "-t with the shorter time is obeyed",
    "-m arbitrary": "-w with --ntasks-per-node is obeyed",
    "scrontab": "a script of scrontab may call sbatch",
}
"""The requests that Berth takes in place of an option by which Slurm alone can choose."""


def _refuse_what_only_slurm_can(fields: Mapping[str, str]) -> None:
    if named := next(filter(fields.__contains__, _ONLY_SLURM_CAN), None):
        raise LeftToSlurm(_ONLY_SLURM_CAN[named], 203)
    if "slurms_own" in fields:
        options = fields["slurms_own"].split(",")
        instead = f"; {_INSTEAD[options[0]]}" if options[0] in _INSTEAD else ""
        raise LeftToSlurm(f"with {' and '.join(options)} only Slurm can choose{instead}", 203)
    if "features" in fields and conditions(fields["features"]) is None:
        shown = f"{fields['features'][:80]!r}{' and so on' if len(fields['features']) > 80 else ''}"
        raise LeftToSlurm(f"the constraint {shown} is more than features joined by & and (a|b)", 204)


def _node_count(fields: Mapping[str, str]) -> int | None:
    least, most = number(fields, "min_nodes"), number(fields, "max_nodes")
    if most is not None and most != (least or 1):
        wanted = f"a range of {least or 1} to {most} nodes"
        raise LeftToSlurm(f"{wanted} is Slurm's to settle; -N with one number is obeyed", 205)
    if most is None and least in {None, 0, 1}:
        return None
    return least


def _gpus(fields: Mapping[str, str], nodes: int | None) -> tuple[int | None, int | None, int | None]:
    """Returns the GPUs in all, per node, and per task."""
    by_job = _counted(fields, "tres_per_job")
    by_node = _counted(fields, "tres_per_node")
    by_task = _counted(fields, "tres_per_task")
    if by_task is not None and by_node is not None:
        raise LeftToSlurm("GPUs are asked for by node and by task at once", 206)
    if by_task is not None:
        tasks = number(fields, "num_tasks") or (number(fields, "ntasks_per_node") or 0) * (nodes or 1)
        if not tasks or (by_job is not None and by_job != tasks * by_task):
            raise LeftToSlurm("--gpus-per-task without a number of tasks that tells how many GPUs", 206)
        by_job = tasks * by_task
    if by_job is not None and by_node is not None and by_job != by_node * (nodes or 1):
        raise LeftToSlurm("--gpus and --gpus-per-node do not say how many nodes", 206)
    if by_node is not None:
        by_job = None
    if not (by_job or by_node):
        if "ntasks_per_tres" in fields:
            # Slurm binds such tasks by a count of GPUs, but a pin names GPUs one by one.
            raise LeftToSlurm("--ntasks-per-gpu without a number of GPUs", 206)
        raise LeftToSlurm("it asks for no GPUs", 202)
    if "ntasks_per_tres" in fields:
        _check_tasks_per_gpu(fields, by_job, by_node)
    return by_job, by_node, by_task


def _check_tasks_per_gpu(fields: Mapping[str, str], by_job: int | None, by_node: int | None) -> None:
    tasks, on_each_gpu = number(fields, "num_tasks"), number(fields, "ntasks_per_tres") or 0
    if tasks is None:
        raise LeftToSlurm("--ntasks-per-gpu without a number of tasks", 206)
    if by_node is not None:
        # Slurm binds such tasks by a count of GPUs on each node, but a pin names GPUs one by one.
        raise LeftToSlurm("--ntasks-per-gpu with GPUs for each node", 206)
    if tasks != (by_job or 0) * on_each_gpu:
        raise LeftToSlurm("--ntasks-per-gpu does not agree with the numbers of tasks and GPUs", 206)
    cpus, of_a_task = number(fields, "min_cpus") or 0, number(fields, "cpus_per_task") or 1
    if cpus > tasks * of_a_task:
        # sbatch lowers the number of tasks to what the GPUs take, but still asks for the CPUs of all tasks.
        raise LeftToSlurm("--ntasks-per-gpu with more CPUs than its tasks take", 207)
    if of_a_task > 1 and cpus and cpus < tasks * of_a_task:
        # sbatch of 24.11 raises the number of tasks, but not their CPUs; Slurm never starts such a job with a place.
        raise LeftToSlurm("--ntasks-per-gpu with fewer CPUs than its tasks take", 207)


def _counted(fields: Mapping[str, str], key: str) -> int | None:
    """Returns the count of GPUs in a TRES text; None if it names no GPUs."""
    count = None
    for word in fields.get(key, "").split(","):
        if not word or (key == "tres_per_task" and re.match(r"(cpu|mem)[:=]", word)):
            continue
        match = _GPUS.fullmatch(word)
        if match is None:
            raise LeftToSlurm(f"{word} in the request is more than a number of GPUs", 206)
        count = (count or 0) + int(match.group(1) or 1)
    return count


def _memory(fields: Mapping[str, str]) -> Memory | None:
    if fields.keys().isdisjoint(("mem_per_node", "mem_per_cpu", "mem_per_tres")):
        return None
    memory = Memory(number(fields, "mem_per_node"), number(fields, "mem_per_cpu"), _counted(fields, "mem_per_tres"))
    return None if memory == Memory() else memory
