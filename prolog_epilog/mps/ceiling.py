# SPDX-License-Identifier: Apache-2.0
"""MPS v2 with percentages: a ceiling on the server, and each client's own environment below it."""

import os
import time
from dataclasses import dataclass

from prolog_epilog.errors import ControlError
from prolog_epilog.mps.control import Control, Refused, mebibytes
from prolog_epilog.mps.limits import (
    Level,
    await_server,
    ceiling_of,
    check_memory,
    check_percent,
    memory_environment,
    memory_words,
)
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState, Tenant

_UNKNOWN = "Unknown command"
#: Below 1 GiB MPS may show nothing to compare with, so a ceiling is never lower.
_LEAST_MIB = 1024
#: A limit cannot be removed again; this one is above every GPU's memory.
_NO_LIMIT_MIB = 1 << 20


def _least_ceiling(mib: int) -> int:
    """Returns the lowest limit that can be read back."""
    return max(mib, _LEAST_MIB)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One server has one percentage for all its clients: the highest share of any tenant.

    Any other percentage would be wrong for some tenant. If it is lower, the largest tenant does not get what it was
    promised. If there is none, one unset variable gives a tenant the whole GPU. So the server holds the largest tenant,
    and the environment holds the others, below the ceiling. NVML cannot see which process uses the multiprocessors
    under MPS, so a tenant that raises itself to the ceiling is not found out: the level's sentence says so.
    """

    name: str = "ceiling"

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """Returns the daemon's options: only the flag for several users."""
        return (multi_user,) if multi_user else ()

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Sets the defaults first, then starts the server: a server that has to be started anew begins with them."""
        control.await_answer("get_default_active_thread_percentage", until)
        percent, memory = ceiling_of(state)
        control.tell(f"set_default_active_thread_percentage {percent}")
        check_percent(control.tell("get_default_active_thread_percentage"), percent, "the default percentage")
        if memory is not None:
            self.set_default_memory(control, _least_ceiling(memory))
        return self.start(control, state, until)

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> dict[str, str]:
        """Raises the ceiling if this tenant is larger than all others."""
        self._set(control, state)
        own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(tenant.share)}
        return own | memory_environment(control, tenant)

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:  # noqa: ARG002 - as others do
        """Lowers the ceiling if this tenant was the largest; running clients keep what they have."""
        self._set(control, state)

    def _set(self, control: Control, state: SetState) -> None:
        percent, memory = ceiling_of(state)
        server = self.server(control)
        if server is None:
            raise ControlError("MPS has lost its server; look at its control.log")
        control.tell(f"set_default_active_thread_percentage {percent}")
        control.tell(f"set_active_thread_percentage {server} {percent}")
        check_percent(control.tell(f"get_active_thread_percentage {server}"), percent, "the server's percentage")
        self.set_memory(control, server, memory)

    def level(self, state: SetState, tenant: Tenant) -> Level:
        """Returns how firmly the tenant is held."""
        percent, _ = ceiling_of(state)
        if percent == tenant.share:
            held = f"MPS holds the job at {percent} % of the multiprocessors until a job with a larger share joins it"
        else:
            held = f"the job's environment holds it at {tenant.share} % of the multiprocessors, MPS at {percent} %"
        if state.loose:
            return Level(
                "open-ceiling", f"{held}, unless it raises that itself, as this driver allows; {memory_words(tenant)}"
            )
        return Level("server-ceiling", f"{held}; {memory_words(tenant)}")

    def server(self, control: Control) -> int | None:
        """Returns the server's process number; None if there is no server."""
        return next(iter(_numbers(control.tell("get_server_list"))), None)

    def status(self, control: Control) -> str:
        """Returns ACTIVE, INITIALIZING, FAULT, or GONE."""
        server = self.server(control)
        if server is None:
            return "GONE"
        try:
            return control.tell(f"get_server_status {server}").strip() or "GONE"
        except Refused as refused:
            return _status_by_percentage(control, server) if _UNKNOWN in refused.said else "GONE"

    def clients(self, control: Control) -> tuple[int, ...]:
        """Returns the processes that are connected."""
        server = self.server(control)
        try:
            return () if server is None else _numbers(control.tell(f"get_client_list {server}"))
        except Refused:
            return ()

    def terminate(self, control: Control, pid: int) -> bool:
        """Destroys a client's contexts."""
        server = self.server(control)
        try:
            return server is not None and control.tell(f"terminate_client {server} {pid}").strip() == "0"
        except Refused:
            return False

    def start(self, control: Control, state: SetState, until: float) -> Proven:
        """Starts the server before any client does."""
        uid = 0 if state.multi_user else state.tenants[0].uid
        control.tell(f"start_server -uid {uid}", max(1.0, until - time.monotonic()))
        return await_server(lambda: self.server(control), lambda: self.status(control), uid, state.boot, until)

    def loose(self, control: Control, state: SetState) -> bool:
        """Tries, as the first tenant, to set a limit that is set already; returns true if MPS accepts that.

        On drivers 535 to 595 a user can do so if the server runs as that user, and on 535 also if it runs as another.
        """
        percent, uid = ceiling_of(state)[0], state.tenants[0].uid
        if os.geteuid() != 0 or uid == 0:
            return uid == os.geteuid()
        try:
            control.tell(f"set_active_thread_percentage {self.server(control)} {percent}", uid=uid)
        except ControlError:
            return False
        return True

    def set_default_memory(self, control: Control, mib: int) -> None:
        """Sets the memory limit of each client of later servers; by ordinal: before driver 580 a UUID is ignored."""
        for ordinal, uuid in enumerate(control.uuids):
            control.tell(f"set_default_device_pinned_mem_limit {ordinal} {mib}M")
            shown = control.tell(f"get_default_device_pinned_mem_limit {ordinal}")
            check_memory(shown, mib, f"the default memory limit of {uuid}")

    def set_memory(self, control: Control, server: int, memory: int | None) -> None:
        """Sets the memory limit of each client that comes to this server, or to a later one, from now on.

        The limit is set whatever MPS shows before: a value that was read is no proof that it holds.
        """
        for ordinal, uuid in enumerate(control.uuids):
            if memory is None and mebibytes(control.tell(f"get_device_pinned_mem_limit {server} {ordinal}")) is None:
                continue
            ceiling = _NO_LIMIT_MIB if memory is None else _least_ceiling(memory)
            control.tell(f"set_default_device_pinned_mem_limit {ordinal} {ceiling}M")
            control.tell(f"set_device_pinned_mem_limit {server} {ordinal} {ceiling}M")
            shown = control.tell(f"get_device_pinned_mem_limit {server} {ordinal}")
            check_memory(shown, ceiling, f"the memory limit of {uuid}")


def _numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers that stand alone on a line: a sentence may hold one too."""
    return tuple(int(line) for line in text.split("\n") if line.strip().isdigit())


def _status_by_percentage(control: Control, server: int) -> str:
    """Returns the status by the percentage: driver 535 has no get_server_status, and a starting server shows none."""
    try:
        shown = control.tell(f"get_active_thread_percentage {server}").strip()
    except Refused:
        return "GONE"
    return "ACTIVE" if shown else "INITIALIZING"
