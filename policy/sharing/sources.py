# SPDX-License-Identifier: Apache-2.0
"""Reads profiles from Slurm's accounting and from the guard's heartbeats; the class's prior fills what is missing.

All functions are pure: they take lines and rows, and return the arguments of `Store.add`.

    >>> lines = ["JobID|User|Account|JobName|End|ElapsedRaw|AllocTRES|TRESUsageInAve|TRESUsageInMax",
    ...          "7|ann|lab|train|1763700000|900|gres/gpu=1|gres/gpumem=2900M,gres/gpuutil=41|gres/gpumem=3012M"]
    >>> from policy.sharing.profiles import describe
    >>> store = Store()
    >>> for key, one in from_sacct(lines):
    ...     store.add(key, one)
    >>> describe(store.measured[ProfileKey("ann", "lab", "train")])
    'kernels 41% of the time, 3012 MiB, 1.0 runs'
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from policy.formats.errors import FormatError
from policy.sharing.profiles import Measured, ProfileKey, Store

COMMAND = "sacct -aP -o JobID,User,Account,JobName,End,ElapsedRaw,AllocTRES,TRESUsageInAve,TRESUsageInMax"
"""The command to run; it lists steps too, because Slurm counts GPU use by step (AutoDetect=nvml in gres.conf)."""

_COLUMNS = COMMAND.rsplit(" ", 1)[1].split(",")
_FULL_RUN_S = 600.0
"""Seconds; a run of this length counts as one measurement, a shorter one as a part of it."""
_UNITS = {"": 2.0**-20, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
_AMOUNT = re.compile(r"([\d.]+)([KMGT]?)")


PRIORS = {
    "compute": Measured(at=0.0, runs=0.0, busy=1.0, bandwidth=0.6, memory=12_000.0),
    "mixed": Measured(at=0.0, runs=0.0, busy=1.0, bandwidth=0.75, memory=20_000.0),
    "memory": Measured(at=0.0, runs=0.0, busy=0.6, bandwidth=0.4, memory=12_000.0),
}
"""The profile that a job of a class is assumed to have before it is measured.

The values are about the highest that such jobs reached in public measurements, so that neither the job nor its
neighbour is promised too much. `runs` is 0, because nothing was measured.
"""


def profile_for(store: Store, key: ProfileKey, app_class: str = "", gpu_mem: float | None = None) -> Measured:
    """Returns the profile to place a job by: its own, with missing values from its class's prior.

    Where its memory was not measured, a job that requests GPU memory is assumed to use that much.
    """
    prior = PRIORS.get(app_class, PRIORS["mixed"])
    if gpu_mem is not None:
        prior = replace(prior, memory=gpu_mem)
    own = store.best_for(key, app_class)
    if own is None:
        return prior
    missing = {
        name: getattr(prior, name) for name in ("busy", "bandwidth", "memory") if getattr(own, name) is None
    }  # fmt: skip
    return replace(own, **missing)


def from_sacct(lines: Iterable[str], mark: str = "|") -> Iterator[tuple[ProfileKey, Measured]]:
    """Yields measurements of jobs that had one GPU alone, from the output of COMMAND with `--delimiter` MARK.

    The job name is free text from its user and may hold line ends and bars. Only a mark that users cannot guess stops
    them from forging lines about other users' jobs.

    Some jobs are left out. With several GPUs, Slurm adds up the use of all GPUs of a task. Packed jobs and guests were
    not alone. Where the accounting has seats, an owner without its seat may have had a guest.
    """
    rows = list(_rows(lines, mark))
    # An owner that did not hold its own seat may have had a guest.
    needed = frozenset({"gres/seat"} if any("gres/seat" in row["AllocTRES"] for row in rows) else ())
    steps: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        steps.setdefault(row["JobID"].split(".", 1)[0], []).append(row)
    for several in steps.values():
        job = next((row for row in several if "." not in row["JobID"]), None)
        if job is not None and _alone(_tres(job["AllocTRES"]), needed) and (found := _measured(job, several)):
            yield ProfileKey(job["User"], job["Account"], job["JobName"]), found


def _rows(lines: Iterable[str], mark: str) -> Iterator[Mapping[str, str]]:
    header: list[str] = []
    begun = ""
    for number, line in enumerate(lines, 1):
        begun += line if line.endswith("\n") else f"{line}\n"
        cells = begun.removesuffix("\n").split(mark)
        if not header:
            header = cells
            missing = [name for name in _COLUMNS if name not in header]
            if missing:
                raise FormatError(f"line 1 of the accounting has no column {missing[0]}; use {COMMAND}")
        elif len(cells) < len(header):
            continue  # a name with a line end in it
        elif len(cells) > len(header):
            raise FormatError(f"line {number} of the accounting has {len(cells)} columns, the header {len(header)}")
        else:
            yield dict(zip(header, cells, strict=True))
        begun = ""
    if begun:
        raise FormatError("the last line of the accounting is not whole")


def _tres(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _alone(allocated: Mapping[str, str], needed: frozenset[str]) -> bool:
    return allocated.get("gres/gpu") == "1" and "gres/shard" not in allocated and needed <= allocated.keys()


def _measured(job: Mapping[str, str], lines: Sequence[Mapping[str, str]]) -> Measured | None:
    """Returns the measurement of one job: kernel time is the mean over steps by their length, memory the maximum."""
    ended, elapsed = _moment(job["End"]), float(job["ElapsedRaw"] or 0)
    busy, length, memory = 0.0, 0.0, 0.0
    for line in lines:
        seconds = float(line["ElapsedRaw"] or 0)
        used = _tres(line["TRESUsageInAve"]).get("gres/gpuutil")
        if used is not None and seconds > 0:
            busy, length = busy + seconds * _amount(used)[0], length + seconds
        most = _tres(line["TRESUsageInMax"]).get("gres/gpumem")
        if most is not None:
            number, unit = _amount(most)
            memory = max(memory, number * _UNITS[unit])
    if ended is None or not length:
        return None
    return Measured(
        at=ended,
        runs=min(1.0, length / _FULL_RUN_S),
        busy=min(1.0, busy / length / 100),
        memory=memory or None,
        **peak_of(memory or None, ended - elapsed),
    )


def peak_of(memory: float | None, start: float) -> dict[str, float]:
    """Returns the fields of a profile that say how much memory one run took at most."""
    return {} if memory is None else {"peak": memory, "peaks": 0.0, "newest": start}


def _amount(text: str) -> tuple[float, str]:
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise FormatError(f"the accounting has the amount {text!r}; a number with K, M, G or T is right")
    return float(found[1]), found[2]


def _moment(text: str) -> float | None:
    """Returns seconds since 1970, or None for a job that has not ended."""
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
