# SPDX-License-Identifier: Apache-2.0
"""The audit: compares the processes on a shared GPU with its jobs; finds within a second what no level stops.

This module reads nothing itself: berth-guard passes in what it sees, and acts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prolog_epilog.node.devices import GpuProcess
from prolog_epilog.tenants.state import SetState, Tenant

SLACK_MIB = 256
"""MiB that a job may be over its memory: NVML counts what the driver itself takes for a context."""

ORDER = ("warn", "terminate", "requeue")
"""The answers, from mild to hard; [node] violation names the hardest that the site allows."""

_DUE = {"warn": 1, "terminate": 3, "requeue": 10}
"""The samples with an excess at which an answer is due: a job that ends is still seen for a moment."""
_AGAIN = 60
_LEAK, _LEAST = 0.95, 0.1
"""The part of the samples that is left after one without the excess, and how few are forgotten: a job that pauses for
a second, again and again, is answered all the same."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A job, or a process of no job, that takes from a GPU what it was not given."""

    uuid: str
    job: int | None
    kind: str
    """`foreign`: not among the GPU's jobs; `outside`: past MPS and its limits; `memory`: more than it was given."""
    pids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class AuditAction:
    """The answer to an excess that is due now: one of ORDER."""

    what: str
    excess: Excess


def look(
    books: Iterable[SetState],
    processes: Callable[[str], Sequence[GpuProcess]],
    job_of: Callable[[int], int | None],
    ours: Callable[[SetState], set[int]],
) -> list[Excess]:
    """Looks once at all shared GPUs; returns the excesses."""
    found: list[Excess] = []
    for one in books:
        own = ours(one)
        for uuid in one.uuids:
            by_job: dict[int | None, list[GpuProcess]] = {}
            for process in processes(uuid):
                if process.pid in own:
                    continue
                job = job_of(process.pid)
                # An X server draws for the user at the screen; a job that draws could as well compute.
                if job is not None or process.kind != "graphics":
                    by_job.setdefault(job, []).append(process)
            for job, running in by_job.items():
                tenant = None if job is None else one.tenant(job)
                found += _foreign(uuid, job, running) if tenant is None else _tenant(uuid, one, tenant, running)
    return found


def _foreign(uuid: str, job: int | None, running: Sequence[GpuProcess]) -> list[Excess]:
    pids = _pids(running)
    whose = "no job" if job is None else f"job {job}, which has no share of it"
    return [Excess(uuid, job, "foreign", pids, f"GPU {uuid} is used by process {_list(pids)} of {whose}")]


def _tenant(uuid: str, one: SetState, tenant: Tenant, running: Sequence[GpuProcess]) -> list[Excess]:
    found = []
    # MPS does not handle graphics, not even of its own clients.
    drawing = {process.pid for process in running if process.kind == "graphics"}
    clients = {process.pid for process in running if process.kind == "mps"} - drawing
    outside = tuple(pid for pid in _pids(running) if pid not in clients)
    if outside and one.method != "time":
        text = f"job {tenant.job} uses GPU {uuid} past MPS, without its limits: process {_list(outside)}"
        found.append(Excess(uuid, tenant.job, "outside", outside, text))
    # NVML may list a client twice: as a process with a context, and as a client of MPS.
    memory: dict[int, int] = {}
    for process in running:
        memory[process.pid] = max(process.memory_mib or 0, memory.get(process.pid, 0))
    taken = sum(memory.values())
    if tenant.mem_mib is not None and taken > tenant.mem_mib + SLACK_MIB:
        text = f"job {tenant.job} holds {taken} MiB of GPU {uuid}, and was given {tenant.mem_mib} MiB"
        found.append(Excess(uuid, tenant.job, "memory", _pids(running), text))
    return found


def _pids(running: Sequence[GpuProcess]) -> tuple[int, ...]:
    return tuple(sorted({process.pid for process in running}))


def _list(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids[:5])) + (f" and {len(pids) - 5} more" if len(pids) > 5 else "")


@dataclass(slots=True)
class Judge:
    """Remembers how much of each excess was seen lately, and answers harder the more it was."""

    hardest: str
    lasted: dict[tuple[str, int | None, str], float] = field(default_factory=dict)

    def answers(self, excesses: Sequence[Excess]) -> list[AuditAction]:
        """Returns the answers that are due after this look."""
        keys = {(one.uuid, one.job, one.kind): one for one in excesses}
        before = self.lasted
        quiet = {key: seen * _LEAK for key, seen in before.items() if key not in keys and seen * _LEAK >= _LEAST}
        self.lasted = quiet | {key: before.get(key, 0.0) + 1.0 for key in keys}
        return [
            AuditAction(what, one)
            for key, one in keys.items()
            for what in ORDER
            if self._is_allowed(what, one)
            and _times_due(what, self.lasted[key]) > _times_due(what, before.get(key, 0.0))
        ]

    def _is_allowed(self, what: str, excess: Excess) -> bool:
        if ORDER.index(what) > ORDER.index(self.hardest):
            return False
        # A process of no job may be an admin's own program: it is not ended on a guess.
        return what == "warn" or excess.job is not None


def _times_due(what: str, samples: float) -> int:
    """Returns how often an answer was due by so many samples."""
    return 0 if samples < _DUE[what] else 1 + int((samples - _DUE[what]) // _AGAIN)
