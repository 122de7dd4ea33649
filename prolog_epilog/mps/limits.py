"""How a share is held on this node: three methods, strongest first, each set and then read back.

| method | multiprocessors | memory | needs |
|---|---|---|---|
| namespaces | a wall of the job's own | a limit of the job's own | MPS v3 (driver 615) |
| partitions | multiprocessors of the job's own | the server's ceiling | `-S` (CUDA 13.1), Ampere or later, one GPU |
| ceiling | the server's ceiling | the server's ceiling | any MPS from Volta on |

No method alone makes memory a wall: a client that names a GPU which it does not see in
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT loses all its limits (measured by NVIDIA on driver 615). The wall is the kernel's
`dmem` controller; without it the audit looks each second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prolog_epilog.errors import ControlError
from prolog_epilog.mps.control import Control, mebibytes
from prolog_epilog.node import processes
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState, Tenant

__all__ = [
    "Level",
    "Method",
    "NotOffered",
    "await_server",
    "ceiling_of",
    "check_memory",
    "check_percent",
    "memory_environment",
    "memory_words",
    "shows_memory",
    "shows_percent",
]

_POLL_SECONDS = 0.05
#: A server that is in no list this long after its start has died.
_APPEAR_SECONDS = 3.0


class NotOffered(ControlError):
    """The driver's help promised more than the driver keeps: take the next weaker method."""


@dataclass(frozen=True, slots=True)
class Level:
    """What really stops a job here: a word for machines and a sentence for people."""

    name: str
    text: str


class Method(Protocol):
    """One way to hold shares; all functions speak to the set's running daemon."""

    @property
    def name(self) -> str:
        """As the state file has it."""

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """Options of the daemon; `multi_user` is its flag for several users, where the site wants that."""

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Limits for clients to come, then the server, awaited."""

    def loose(self, control: Control, state: SetState) -> bool:
        """Find out whether a tenant can change the limits of all."""

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> tuple[Tenant, dict[str, str]]:
        """Set this tenant's limits and read them back; with its environment. The state holds the tenant already."""

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:
        """Take its limits away; the state is without it already."""

    def level(self, state: SetState, tenant: Tenant) -> Level:
        """What holds the tenant."""

    def status(self, control: Control) -> str:
        """ACTIVE, INITIALIZING, FAULT, or GONE."""

    def clients(self, control: Control) -> tuple[int, ...]:
        """Processes that are connected."""

    def terminate(self, control: Control, pid: int) -> bool:
        """Destroy a client's contexts, which makes it safe to kill; False: it was not there."""


def ceiling_of(state: SetState) -> tuple[int, int | None]:
    """The most that any tenant may have: one server knows one percentage and one memory limit for all its clients."""
    percent = max(tenant.share for tenant in state.tenants)
    memory = [tenant.mem_mib for tenant in state.tenants]
    if any(mib is None for mib in memory):
        return percent, None
    return percent, max(mib for mib in memory if mib is not None)


def memory_environment(control: Control, tenant: Tenant) -> dict[str, str]:
    """The client's own limit, by ordinal, for exactly the GPUs that it sees: one name too many and it has none."""
    if tenant.mem_mib is None:
        return {}
    limits = ",".join(f"{ordinal}={tenant.mem_mib}M" for ordinal in range(len(control.uuids)))
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits}


def memory_words(tenant: Tenant) -> str:
    """What a level's sentence says of memory."""
    if tenant.mem_mib is None:
        return "memory is not limited"
    return f"{tenant.mem_mib} MiB on each GPU are MPS's limit, watched each second where Berth's guard runs"


def shows_percent(shown: str, wanted: int) -> bool:
    """Whether MPS shows this percentage."""
    try:
        return math.isclose(float(shown.strip().removesuffix("%")), wanted, abs_tol=0.5)
    except ValueError:
        return False


def check_percent(shown: str, wanted: int, what: str) -> None:
    """Believe a percentage only when MPS shows it."""
    if not shows_percent(shown, wanted):
        raise ControlError(f"MPS shows {shown.strip()!r} as {what}, not {wanted} %: the share would not hold")


def shows_memory(shown: str, wanted: int) -> bool:
    """Whether MPS shows this limit: from 1 GiB on it may print whole gibibytes, rounded down (seen on driver 595)."""
    now = mebibytes(shown)
    return now is not None and now[0] > 0 and (now[0] == wanted or (now[1] == "G" and now[0] == wanted // 1024 * 1024))


def check_memory(shown: str, wanted: int, what: str) -> None:
    """Believe a memory limit only when MPS shows it."""
    if not shows_memory(shown, wanted):
        raise ControlError(f"MPS shows {shown.strip()!r} as {what}, not {wanted} MiB: the limit would not hold")


def await_server(
    find: Callable[[], int | None], status: Callable[[], str], uid: int, boot: str, until: float
) -> Proven:
    """Wait until the server takes clients, and look whose it is: a user who comes earlier could take the GPU alone."""
    appear = min(until, time.monotonic() + _APPEAR_SECONDS)
    while True:
        now = status()
        pid = find() if now == "ACTIVE" else None
        if pid is not None:
            break
        if now == "FAULT":
            raise ControlError("the MPS server failed at its start; look at its control.log")
        if time.monotonic() > (appear if now == "GONE" else until):
            raise ControlError(f"the MPS server was not ready in time (it is {now}); look at its control.log")
        time.sleep(_POLL_SECONDS)
    server = processes.prove(pid, boot)
    owner = processes.user_of(pid)
    if owner != uid:
        raise ControlError(f"the MPS server runs as user {owner} and not as {uid}; look at its control.log")
    if server is None:
        raise ControlError(
            f"the MPS server (process {pid}) cannot be examined: look at its control.log, and give slurmd the "
            f"capability SYS_PTRACE"
        )
    return server
