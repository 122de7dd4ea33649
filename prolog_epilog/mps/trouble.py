# SPDX-License-Identifier: Apache-2.0
"""The guard's actions on an MPS server: asks its status, ends clients, and restarts it after a fault."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from prolog_epilog.errors import ControlError
from prolog_epilog.mps import daemon, lifecycle, losses
from prolog_epilog.mps.control import Control, MpsConfig
from prolog_epilog.mps.limits import Method
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state as states
from prolog_epilog.tenants.state import SetState, Tenant

#: Seconds that a server may take to recover once its clients are gone.
RECOVERY_SECONDS = 30.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Reset:
    """A server after its fault: the jobs that lost it, the processes named as the cause, whether it was restarted."""

    tenants: tuple[Tenant, ...]
    causes: tuple[int, ...]
    restarted: bool


def terminate_clients(paths: Paths, config: MpsConfig, uuid: str, pids: Iterable[int]) -> tuple[int, ...]:
    """Destroys the contexts of these clients, which makes them safe to kill; returns those that were there."""
    state = states.load(paths, uuid)
    if state is None or not daemon.running(state):
        return ()
    method, control = _ways(paths, config, state)
    known = set(method.clients(control))
    return tuple(pid for pid in pids if pid in known and method.terminate(control, pid))


def causes(paths: Paths, uuid: str) -> tuple[int, ...]:
    """Returns the processes that the server's log names as the cause of a fault, latest first; call before a reset."""
    state = states.load(paths, uuid)
    return () if state is None else losses.causes(paths.log(state.name))


def reset_after_fault(paths: Paths, config: MpsConfig, uuid: str, patience: float = RECOVERY_SECONDS) -> Reset:
    """Makes the GPU usable again after a fault: ends the clients, waits, else restarts MPS with all its limits.

    All clients are dead already, because a fault hits all jobs on these GPUs. Each job that lost MPS is returned once;
    the caller deals with it. The books and MPS, as they are under the locks, decide whether there was a fault and which
    jobs it hit: the fault that the guard saw may be over, and other jobs may have come since.
    """
    state = states.load(paths, uuid)
    if state is None:
        return Reset((), (), restarted=False)
    with states.held(paths, state.uuids, config.mps_start_timeout + config.mps_stop_timeout):
        state = states.load(paths, uuid)
        if state is None or not state.tenants:
            return Reset((), (), restarted=False)
        named = losses.causes(paths.log(state.name))
        failed = not _is_well(paths, config, state)
        victims = tuple(one for one in state.tenants if failed or one.lost or set(named) - set(one.known))
        if not victims:
            return Reset((), (), restarted=False)
        restarted = not _recovers(paths, config, state, patience)
        if restarted:
            # The log may name the cause only now, and is removed with the daemon.
            named = losses.causes(paths.log(state.name)) or named
            state = lifecycle.revive(paths, config, state)
        left = () if restarted else named
        state = replace(state, tenants=tuple(replace(one, known=left, lost=False) for one in state.tenants))
        states.store(paths, state)
        causes = tuple(pid for pid in named if any(pid not in one.known for one in victims))
        return Reset(victims, causes, restarted=restarted)


def _is_well(paths: Paths, config: MpsConfig, state: SetState) -> bool:
    try:
        return lifecycle.status_of(paths, config, state) not in {"FAULT", "GONE"}
    except ControlError:
        return False


def _recovers(paths: Paths, config: MpsConfig, state: SetState, patience: float) -> bool:
    """Tells whether the server takes clients again without a restart."""
    method, control = _ways(paths, config, state)
    until = time.monotonic() + patience
    try:
        while daemon.running(state):
            now = method.status(control)
            if now == "ACTIVE":
                return True
            if now == "GONE" or time.monotonic() > until:
                return False
            if now == "FAULT":
                for pid in method.clients(control):
                    method.terminate(control, pid)
            time.sleep(_POLL_SECONDS)
    except ControlError:
        pass
    return False


def _ways(paths: Paths, config: MpsConfig, state: SetState) -> tuple[Method, Control]:
    return lifecycle.method_of(state), lifecycle.control_of(paths, config, state.uuids)
