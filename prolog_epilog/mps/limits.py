# SPDX-License-Identifier: Apache-2.0
"""The methods to hold a share on this node: two, the stronger one first, each set and then read back.

| method | multiprocessors | memory | needs |
|---|---|---|---|
| namespaces | a hard limit of the job's own | a limit of the job's own | MPS v3 (driver 615) |
| ceiling | the server's ceiling | the server's ceiling | any MPS from Volta on |

No method alone makes a hard limit on memory. A client that names a GPU which it does not see in
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT loses all its limits (measured by NVIDIA on driver 615). The hard limit is the kernel's
`dmem` controller; without it the audit checks each second.
"""

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

_POLL_SECONDS = 0.05
#: A server that is in no list this long after its start has died.
_APPEAR_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Level:
    """The level at which a job is really held here: a word for machines and a sentence for people."""

    name: str
    text: str


class Method(Protocol):
    """One method to hold shares; all functions talk to the set's running daemon."""

    @property
    def name(self) -> str:
        """Returns the method's name in the state file."""

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """Returns the daemon's options; `multi_user` is its flag for several users, if the site wants that."""

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Sets the limits for later clients, then starts the server and waits for it."""

    def loose(self, control: Control, state: SetState) -> bool:
        """Finds out whether a tenant can change the limits of all."""

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> dict[str, str]:
        """Sets this tenant's limits, which the state holds already, and reads them back; returns its environment."""

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:
        """Takes its limits away; the state is without it already."""

    def level(self, state: SetState, tenant: Tenant) -> Level:
        """Returns the level at which the tenant is held."""

    def status(self, control: Control) -> str:
        """Returns ACTIVE, INITIALIZING, FAULT, or GONE."""

    def clients(self, control: Control) -> tuple[int, ...]:
        """Returns the processes that are connected."""

    def terminate(self, control: Control, pid: int) -> bool:
        """Destroys a client's contexts, which makes it safe to kill; False: it was not there."""


def ceiling_of(state: SetState) -> tuple[int, int | None]:
    """Returns the most that any tenant may have: one server has one percentage and one memory limit for all clients."""
    percent = max(tenant.share for tenant in state.tenants)
    memory = [tenant.mem_mib for tenant in state.tenants]
    if any(mib is None for mib in memory):
        return percent, None
    return percent, max(mib for mib in memory if mib is not None)


def memory_environment(control: Control, tenant: Tenant) -> dict[str, str]:
    """Returns the client's own limit, by ordinal, for exactly the GPUs that it sees: one name too many removes it."""
    if tenant.mem_mib is None:
        return {}
    limits = ",".join(f"{ordinal}={tenant.mem_mib}M" for ordinal in range(len(control.uuids)))
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits}


def memory_words(tenant: Tenant) -> str:
    """Returns what a level's sentence says of memory."""
    if tenant.mem_mib is None:
        return "memory is not limited"
    return f"{tenant.mem_mib} MiB on each GPU are MPS's limit, watched each second where Berth's guard runs"


def shows_percent(shown: str, wanted: int) -> bool:
    """Tells whether MPS shows this percentage."""
    try:
        return math.isclose(float(shown.strip().removesuffix("%")), wanted, abs_tol=0.5)
    except ValueError:
        return False


def check_percent(shown: str, wanted: int, what: str) -> None:
    """Raises ControlError unless MPS shows this percentage."""
    if not shows_percent(shown, wanted):
        raise ControlError(f"MPS shows {shown.strip()!r} as {what}, not {wanted} %: the share would not hold")


def shows_memory(shown: str, wanted: int) -> bool:
    """Tells whether MPS shows this limit: from 1 GiB on it may print whole gibibytes, rounded down (driver 595)."""
    now = mebibytes(shown)
    return now is not None and now[0] > 0 and (now[0] == wanted or (now[1] == "G" and now[0] == wanted // 1024 * 1024))


def check_memory(shown: str, wanted: int, what: str) -> None:
    """Raises ControlError unless MPS shows this memory limit."""
    if not shows_memory(shown, wanted):
        raise ControlError(f"MPS shows {shown.strip()!r} as {what}, not {wanted} MiB: the limit would not hold")


def await_server(
    find: Callable[[], int | None], status: Callable[[], str], uid: int, boot: str, until: float
) -> Proven:
    """Waits until the server takes clients, and checks its user: a user who comes earlier could take the GPU alone."""
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
