# SPDX-License-Identifier: Apache-2.0
"""Reads sacct's lines as runs of jobs.

    >>> line = ["7", *"1000 1000 1060 4660 3600 FAILED 1:0 None 2 60 ann lab".split()]
    >>> line += ["node=1", "gres/gpu=8,node=2", "", "n[1-2]", "site note [berth/1 fail=import_error]"]
    >>> (run,) = read(["|".join(COLUMNS), "|".join(line)])
    >>> run.gpus, run.nodes, run.wait_s, run.said["fail"]
    (8, ('n1', 'n2'), 60.0, 'import_error')

Only the last column holds free text, so that a separator in that text cannot shift a column.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from policy.formats import hostlist, segment
from policy.formats.errors import FormatError

COLUMNS = (
    *("JobIDRaw", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "State", "ExitCode", "Reason"),
    *("NNodes", "TimelimitRaw", "User", "Account", "ReqTRES", "AllocTRES", "TRESUsageInTot", "NodeList"),
    "AdminComment",
)
"""The columns of the sacct query, with SLURM_TIME_FORMAT=%s: times are seconds since 1970."""

_ID = re.compile(r"(\d{1,18})(?:\+\d{1,9})?(?:\.(\S{1,64}))?")
_NUMBER = re.compile(r"\d{1,18}")
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, or its stay in the queue; a requeued job has several."""

    id: str
    submit: float
    eligible: float
    start: float | None
    end: float | None
    ran_s: float
    state: str
    code: int
    signal: int
    reason: str
    """Slurm's last reason other than Priority and Resources."""
    gpus: int
    part: bool
    """Tells whether it has parts of GPUs or a guest's seat, and no whole GPU."""
    nodes: tuple[str, ...]
    asked_nodes: int
    limit: str
    user: str
    account: str
    said: Mapping[str, str] = field(default_factory=dict)
    """The fields of Berth's segment."""
    used: float | None = None
    """Part of its GPUs' time in which kernels ran, where Slurm measured it."""

    @property
    def wait_s(self) -> float:
        """Seconds from the eligible time to the start."""
        return max(0.0, (self.start or self.eligible) - self.eligible)

    @property
    def gpu_s(self) -> float:
        """GPU seconds that it held."""
        return self.gpus * self.ran_s


def read(lines: Iterable[str]) -> Iterator[JobRun]:
    """Yields the runs in sacct's output; the steps of a run follow it and tell how its GPUs were used."""
    source = iter(lines)
    header = next(source, "").rstrip("\n").split("|")
    if not set(COLUMNS) <= set(header) or header[-1] != COLUMNS[-1]:
        raise FormatError(
            "this is no file that `berth collect` wrote, and no answer to "
            f"`{COMMAND}`: its first line does not name those columns, {COLUMNS[-1]} last"
        )
    place = header.index("JobIDRaw")
    run: JobRun | None = None
    measured = 0.0
    seen = False
    for line in source:
        values = line.rstrip("\n").split("|", len(header) - 1)
        match = _ID.fullmatch(values[place]) if len(values) == len(header) else None
        if match is None:
            continue  # the rest of a comment that has several lines
        row = dict(zip(header, values, strict=True))
        if match[2]:
            if run is not None and run.id == match[1]:
                use = tres(row["TRESUsageInTot"]).get("gres/gpuutil")
                seen |= use is not None
                measured += (use or 0.0) * (_number(row["ElapsedRaw"]) or 0.0)
            continue
        if run is not None:
            yield _with_use(run, measured, seen=seen)
        run, measured, seen = _run(match[1], row), 0.0, False
    if run is not None:
        yield _with_use(run, measured, seen=seen)


COMMAND = f"SLURM_TIME_FORMAT=%s sacct -aDP -S START -E END -o {','.join(COLUMNS)}"
"""The command whose output `--from` takes."""


def tres(text: str) -> dict[str, float]:
    """Parses Slurm's `name=amount,...`; amounts that are not plain numbers are left out."""
    pairs = (word.partition("=") for word in text.split(","))
    return {name: float(amount) for name, _, amount in pairs if _NUMBER.fullmatch(amount)}


def _run(job: str, row: Mapping[str, str]) -> JobRun:
    asked, held = tres(row["ReqTRES"]), tres(row["AllocTRES"])
    start, submit = _number(row["Start"]), _number(row["Submit"]) or 0.0
    code = _EXIT.fullmatch(row["ExitCode"])
    known = held or asked
    gpus = gpus_of(known)
    return JobRun(
        id=job,
        submit=submit,
        # A held or dependent job does not wait for GPUs yet; a job that can never start has no eligible time.
        eligible=max(submit, _number(row["Eligible"]) or submit),
        start=start,
        end=_number(row["End"]),
        ran_s=(_number(row["ElapsedRaw"]) or 0.0) if start else 0.0,
        state=row["State"].partition(" ")[0],
        code=int(code[1]) if code else 0,
        signal=int(code[2]) if code else 0,
        reason=row["Reason"],
        gpus=gpus,
        part=not gpus and any(name.startswith(("gres/shard", "gres/seat")) for name in known),
        nodes=_nodes(row["NodeList"]) if start else (),
        asked_nodes=int(asked.get("node", 1)),
        limit=row["TimelimitRaw"],
        user=row["User"],
        account=row["Account"],
        said=_said(row["AdminComment"]),
    )


def gpus_of(amounts: Mapping[str, float]) -> int:
    """Returns the GPUs of the whole job; where types are listed beside the sum, the sum counts."""
    if "gres/gpu" in amounts:
        return int(amounts["gres/gpu"])
    return int(sum(amount for name, amount in amounts.items() if name.startswith("gres/gpu:")))


def _with_use(run: JobRun, measured: float, *, seen: bool) -> JobRun:
    if not (seen and run.gpu_s):
        return run
    # Slurm counts percent of one GPU and adds them up over the GPUs of a step.
    return replace(run, used=min(1.0, measured / 100 / run.gpu_s))


def _said(text: str) -> Mapping[str, str]:
    try:
        return segment.fields(text) or {}
    except FormatError:
        return {}


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(text)
    except FormatError:
        return ()


def _number(text: str) -> float | None:
    """Returns a moment or a time; None for Unknown, None and the like, and for 0, which Slurm writes for no value."""
    return float(text) or None if _NUMBER.fullmatch(text) else None
