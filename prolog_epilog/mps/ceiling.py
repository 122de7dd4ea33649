"""MPS v2 with percentages: the server's ceiling, and each client's own environment below it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prolog_epilog.errors import ControlError
from prolog_epilog.mps.control import Control, mebibytes
from prolog_epilog.mps.limits import (
    Level,
    await_server,
    ceiling_of,
    check_memory,
    check_percent,
    memory_environment,
    memory_words,
)
from prolog_epilog.processes import Proven
from prolog_epilog.state import SetState, Tenant

__all__ = ["Ceiling", "InteractiveServer", "least_ceiling"]

#: Below 1 GiB MPS may show nothing that could be compared, so that a ceiling is never lower.
_LEAST_MIB = 1024
#: A limit cannot be taken away again; this one is above every GPU's memory.
_NO_LIMIT_MIB = 1 << 20


def least_ceiling(mib: int) -> int:
    """The lowest limit that can be read back."""
    return max(mib, _LEAST_MIB)


class InteractiveServer:
    """What MPS v2 has of a server: one of them, found by its number."""

    __slots__ = ()

    def server(self, control: Control) -> int | None:
        """Its process."""
        words = control.tell("get_server_list").split()
        return int(words[0]) if words and words[0].isdigit() else None

    def status(self, control: Control) -> str:
        """ACTIVE, INITIALIZING, FAULT, or GONE."""
        server = self.server(control)
        return "GONE" if server is None else control.tell(f"get_server_status {server}").strip() or "GONE"

    def clients(self, control: Control) -> tuple[int, ...]:
        """Processes that are connected."""
        server = self.server(control)
        words = [] if server is None else control.tell(f"get_client_list {server}").split()
        return tuple(int(word) for word in words if word.isdigit())

    def terminate(self, control: Control, pid: int) -> bool:
        """Destroy a client's contexts."""
        server = self.server(control)
        return server is not None and control.tell(f"terminate_client {server} {pid}").strip() == "0"

    def start(self, control: Control, state: SetState, until: float) -> Proven:
        """Start the server before any client does."""
        uid = 0 if state.multi_user else state.tenants[0].uid
        control.tell(f"start_server -uid {uid}", max(1.0, until - time.monotonic()))
        return await_server(lambda: self.server(control), lambda: self.status(control), uid, state.boot, until)

    def set_default_memory(self, control: Control, mib: int) -> None:
        """Memory limit of each client of any server to come."""
        for uuid in control.uuids:
            control.tell(f"set_default_device_pinned_mem_limit {uuid} {mib}M")
            shown = control.tell(f"get_default_device_pinned_mem_limit {uuid}")
            check_memory(shown, mib, f"the default memory limit of {uuid}")

    def set_memory(self, control: Control, server: int, memory: int | None) -> None:
        """Memory limit of each client that comes to this server from now on, and to those after it.

        Set whatever it shows before: a value that was read is no proof that it holds.
        """
        for uuid in control.uuids:
            if memory is None and mebibytes(control.tell(f"get_device_pinned_mem_limit {server} {uuid}")) is None:
                continue
            ceiling = _NO_LIMIT_MIB if memory is None else least_ceiling(memory)
            control.tell(f"set_default_device_pinned_mem_limit {uuid} {ceiling}M")
            control.tell(f"set_device_pinned_mem_limit {server} {uuid} {ceiling}M")
            shown = control.tell(f"get_device_pinned_mem_limit {server} {uuid}")
            check_memory(shown, ceiling, f"the memory limit of {uuid}")


@dataclass(frozen=True, slots=True)
class Ceiling(InteractiveServer):
    """One server has one percentage for all its clients: the highest share of any tenant.

    Any other choice would be wrong for somebody: lower, and the largest tenant does not get what it was promised;
    none, and one unset variable gives a tenant the whole GPU. So the largest tenant is held by the server, and the
    others by their environment, below the ceiling. NVML cannot see who uses the multiprocessors under MPS, so a tenant
    that raises itself to the ceiling is not found out: the level's sentence says so.
    """

    name: str = "ceiling"

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """No option but for several users."""
        return (multi_user,) if multi_user else ()

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Defaults first: a server that has to be started anew begins with these."""
        control.await_answer("get_default_active_thread_percentage", until)
        percent, memory = ceiling_of(state)
        control.tell(f"set_default_active_thread_percentage {percent}")
        check_percent(control.tell("get_default_active_thread_percentage"), percent, "the default percentage")
        if memory is not None:
            self.set_default_memory(control, least_ceiling(memory))
        return self.start(control, state, until)

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> tuple[Tenant, dict[str, str]]:
        """Raise the ceiling where this tenant is larger than all others."""
        self._set(control, state)
        own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(tenant.share)}
        return tenant, own | memory_environment(control, tenant)

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:  # noqa: ARG002 - as others do
        """Lower the ceiling where this tenant was the largest; clients that run keep what they have."""
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
        """How firmly the tenant is held."""
        percent, _ = ceiling_of(state)
        if percent == tenant.share:
            held = f"MPS holds the job at {percent} % of the multiprocessors until a job with a larger share joins it"
        else:
            held = f"the job's environment holds it at {tenant.share} % of the multiprocessors, MPS at {percent} %"
        return Level("server-ceiling", f"{held}; {memory_words(tenant)}")
