# SPDX-License-Identifier: Apache-2.0
"""MPS v3 (driver 615): a namespace for each job, with limits of its own that its environment cannot change."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import ControlError
from prolog_epilog.mps.control import Control
from prolog_epilog.mps.limits import (
    Level,
    await_server,
    check_memory,
    check_percent,
    memory_environment,
    memory_words,
)
from prolog_epilog.node import files
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState, Tenant

_SERVER = "berth"
#: Limits for clients that bypass their namespace: enough to be told, too little to be worth it.
_ELSE_PERCENT, _ELSE_MEMORY = 1, "64M"
_CSV = "--format=csv,noheader"
_STATUS = {"ready": "ACTIVE", "active": "ACTIVE", "initializing": "INITIALIZING", "fault": "FAULT"}


@dataclass(frozen=True, slots=True)
class Namespaces:
    """One server for the daemon's GPUs, a namespace for each tenant; a client chooses it by the path of its socket."""

    name: str = "namespaces"

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """Returns the daemon's options: protocol 3 must be asked for."""
        return ("-p", "3", multi_user) if multi_user else ("-p", "3")

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Makes the server; its own limits apply to clients that name no namespace."""
        control.await_call(("server", "list", _CSV), until)
        uid = 0 if state.multi_user else state.tenants[0].uid
        control.call("server", "create", _SERVER, f"--uid={uid}", f"--allowed-devices={','.join(control.uuids)}")
        server = await_server(lambda: self._server(control), lambda: self.status(control), uid, state.boot, until)
        limits = (f"--active-thread-percentage={_ELSE_PERCENT}", f"--pinned-memory-limit={_ELSE_MEMORY}")
        control.call("server", "set", _SERVER, *limits)
        return server

    def loose(self, control: Control, state: SetState) -> bool:  # noqa: ARG002 - as others do
        """Returns false: a tenant has no socket but its namespace's."""
        return False

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> dict[str, str]:  # noqa: ARG002 - as others do
        """Makes the tenant's namespace. One without limits has the whole GPU, so each limit is read back."""
        if self.status(control) != "ACTIVE":
            # Clients run without MPS, and without limits, if there is no server.
            raise ControlError(f"the MPS server is {self.status(control)}; look at its control.log")
        name = _name(tenant.job)
        if name not in self._namespaces(control):
            control.call("namespace", "create", name, f"--server={_SERVER}")
        limits = [f"--active-thread-percentage={tenant.share}"]
        if tenant.mem_mib is not None:
            limits.append(f"--pinned-memory-limit={tenant.mem_mib}M")
        control.call("namespace", "set", name, f"--server={_SERVER}", *limits)
        shown = control.call("namespace", "get", name, _SERVER, "active-thread-percentage")
        check_percent(shown, tenant.share, "the job's percentage")
        if tenant.mem_mib is not None:
            shown = control.call("namespace", "get", name, _SERVER, "pinned-memory-limit")
            check_memory(shown, tenant.mem_mib, "the job's memory limit")
        folder = Path(control.call("namespace", "get", name, _SERVER, "pipe-directory").strip())
        files.grant(folder, [tenant.uid])
        own = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(tenant.share),
        }
        return own | memory_environment(control, tenant)

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:  # noqa: ARG002 - as others do
        """Removes the namespace; clients that still run in it are ended."""
        name = _name(tenant.job)
        if name in self._namespaces(control):
            control.call("namespace", "delete", name, f"--server={_SERVER}", "--force")

    def level(self, state: SetState, tenant: Tenant) -> Level:  # noqa: ARG002 - as others do
        """Returns how firmly the tenant is held."""
        return Level(
            "namespace", f"MPS holds the job at {tenant.share} % of the multiprocessors; {memory_words(tenant)}"
        )

    def status(self, control: Control) -> str:
        """Returns ACTIVE, INITIALIZING, FAULT, or GONE."""
        try:
            shown = control.call("server", "get", _SERVER, "status").strip()
        except ControlError:
            return "GONE"
        return _STATUS.get(shown.lower(), shown.upper() or "GONE")

    def clients(self, control: Control) -> tuple[int, ...]:
        """Returns the processes that are connected."""
        rows = control.call("client", "list", f"--server={_SERVER}", _CSV).splitlines()
        return tuple(int(row.partition(",")[0]) for row in rows if row.partition(",")[0].isdigit())

    def terminate(self, control: Control, pid: int) -> bool:
        """Destroys a client's contexts."""
        try:
            control.call("client", "terminate", str(pid))
        except ControlError:
            return False
        return True

    def _server(self, control: Control) -> int | None:
        with contextlib.suppress(ControlError, ValueError):
            return int(control.call("server", "get", _SERVER, "pid").strip())
        return None

    def _namespaces(self, control: Control) -> set[str]:
        rows = control.call("namespace", "list", f"--server={_SERVER}", _CSV).splitlines()
        return {row.partition(",")[0].strip() for row in rows}


def _name(job: int) -> str:
    return f"job{job}"
