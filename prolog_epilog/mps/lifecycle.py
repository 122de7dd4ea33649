# SPDX-License-Identifier: Apache-2.0
"""MPS from the first job that shares a GPU to the last: attach and detach, both safe to repeat.

All decisions are made under the locks of the GPUs and from the state file, never from a list of processes; so Prolog,
Epilog and guard agree. A step is written down before it is done: after a crash, a killed Prolog or a reboot, the next
caller finds what to take back.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from prolog_epilog.errors import Busy, CannotShare, ControlError, DriverError, StateError
from prolog_epilog.job.extra import OPPORTUNISTIC
from prolog_epilog.mps import daemon, losses, modes
from prolog_epilog.mps.ceiling import Ceiling
from prolog_epilog.mps.control import Abilities, Control, MpsConfig, abilities, clear_trials, why_not_started
from prolog_epilog.mps.limits import Level, Method
from prolog_epilog.mps.losses import Loss
from prolog_epilog.mps.namespaces import Namespaces
from prolog_epilog.node import devices, files, processes
from prolog_epilog.node.devices import EXCLUSIVE_PROCESS, PROHIBITED, NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state as states
from prolog_epilog.tenants.state import SetState, Tenant

#: Variables by which a user affects MPS: those that Berth does not set are removed from the job's environment.
UNSET = (
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_SM_PARTITION",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PROTOCOL_VERSION",
)
_METHODS: tuple[Method, ...] = (Namespaces(), Ceiling())


@dataclass(frozen=True, slots=True)
class Attached:
    """A job that has its share: the changes to its environment, and the level at which it is held."""

    environment: dict[str, str]
    unset: tuple[str, ...]
    level: Level
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detached:
    """The result of a job's end: the sets of GPUs stopped, sentences on what is left, and whether MPS had failed."""

    stopped: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    loss: Loss | None = None


def method_of(state: SetState) -> Method:
    """Returns the method that a state file names."""
    for method in _METHODS:
        if method.name == state.method:
            return method
    raise CannotShare(f"{state.method!r} is no way to hold shares; end the jobs on {state.uuids[0]}, remove its state")


def control_of(paths: Paths, config: MpsConfig, uuids: Sequence[str]) -> Control:
    """Returns the connection to the daemon of these GPUs."""
    name = states.set_name(uuids)
    return Control(config.mps_control, paths.pipe(name), paths.log(name), tuple(sorted(uuids)))


def tenants(paths: Paths, uuid: str) -> tuple[Tenant, ...]:
    """Returns the tenants of this GPU, from the books."""
    found = states.load(paths, uuid)
    return found.tenants if found else ()


def attach(
    paths: Paths, config: MpsConfig, gpus: Sequence[NodeGpu], tenant: Tenant, *, joins: bool = False
) -> Attached:
    """Gives a job its share of these GPUs; CannotShare gives the reason if not, and leaves everything as it was.

    With `joins` it only joins others there, and starts no MPS.
    """
    order = tuple(gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.position))
    uuids = tuple(sorted(order))
    _check(tenant, uuids)
    files.prepare(paths)
    seconds = _lock_seconds(config)
    sweep(paths, config, uuids, seconds)
    with states.held(paths, uuids, seconds):
        for uuid in uuids:
            state = states.load(paths, uuid)
            if state and (state.uuids != uuids or all(state.method != method.name for method in _METHODS)):
                raise CannotShare(f"GPU {uuid} is shared in another way or with other GPUs; berthd moves the job")
            if state:
                return _seen_in(order, _join(paths, config, state, tenant))
        if joins:
            raise CannotShare(f"no job shares GPU {uuids[0]} under MPS; berthd places the job elsewhere")
        return _seen_in(order, _first(paths, config, uuids, tenant))


def _seen_in(order: tuple[str, ...], attached: Attached) -> Attached:
    """Lists the job's GPUs by position, as a job without a share sees them, and not in the order of the books."""
    return replace(attached, environment={**attached.environment, "CUDA_VISIBLE_DEVICES": ",".join(order)})


def sweep(paths: Paths, config: MpsConfig, uuids: Sequence[str] | None = None, seconds: float = 0.0) -> tuple[str, ...]:
    """Cleans up what a crash, a killed Prolog or a reboot left on these GPUs (None: on all).

    Returns a line for each thing that could not be removed. A GPU whose lock is not free in so many seconds is left to
    the lock's holder.
    """
    boot, told = processes.boot_id(paths.boot_id), []
    for known in list(states.everything(paths)):
        if uuids is not None and not set(uuids) & set(known.uuids):
            continue
        if known.boot == boot and known.tenants:
            continue
        with contextlib.suppress(Busy), states.held(paths, known.uuids, seconds):
            state = states.load(paths, known.uuids[0])
            if state and state.boot != boot:
                # The processes are gone, and the driver has lost its modes: only files are left.
                files.remove_folder(paths.mps_set(state.name))
                states.forget(paths, state.uuids)
            elif state and not state.tenants:
                told += _stop(paths, config, state)
    clear_trials(config.mps_control, paths.mps)
    for uuid in states.abandoned(paths):
        with contextlib.suppress(Busy), states.held(paths, [uuid], 0.0):
            pass  # the holder of a lock without state removes the folder at the end
    return tuple(told)


def open_to_owner(paths: Paths, config: MpsConfig, uuids: Sequence[str]) -> None:
    """Restores the compute modes of GPUs that an owner got as a whole while MPS serves a guest that has to go.

    Until the guest's Epilog has ended MPS, the owner's programs would find no GPU.
    """
    for known in list(states.everything(paths)):
        if not known.modes or not set(uuids) & set(known.uuids):
            continue
        with states.held(paths, known.uuids, config.mps_stop_timeout), devices.driver() as nvml:
            state = states.load(paths, known.uuids[0])
            if state is None or any(tenant.tier != OPPORTUNISTIC for tenant in state.tenants):
                continue
            for uuid, mode in zip(state.uuids, state.modes, strict=False):
                if uuid in uuids and nvml.compute_mode(uuid) != mode:
                    nvml.set_compute_mode(uuid, mode)


def _lock_seconds(config: MpsConfig) -> float:
    """Returns a time limit that is longer than the lock's holder may take."""
    return config.mps_start_timeout + config.mps_stop_timeout


def _check(tenant: Tenant, uuids: Sequence[str]) -> None:
    if not uuids:
        raise CannotShare(f"job {tenant.job} shares no GPU of this node; requeue it")
    if not 1 <= tenant.share <= 100 or (tenant.mem_mib is not None and tenant.mem_mib < 1):
        raise CannotShare(f"job {tenant.job} has a share of {tenant.share} % and {tenant.mem_mib} MiB; requeue it")


def _first(paths: Paths, config: MpsConfig, uuids: tuple[str, ...], tenant: Tenant) -> Attached:
    """Attaches the first job to these GPUs, which are not shared yet."""
    able = _able(paths, config, uuids, multi_user=config.multi_user)
    with devices.driver() as nvml:
        state = SetState(
            boot=processes.boot_id(paths.boot_id),
            uuids=uuids,
            modes=tuple(modes.usable(nvml, uuid) for uuid in uuids),
            method=(Namespaces() if able.namespaces else Ceiling()).name,
            multi_user=config.multi_user,
            tenants=(replace(tenant, alone_since=time.monotonic()),),
        )
        states.store(paths, state)
        try:
            modes.set_all(uuids, EXCLUSIVE_PROCESS)
            return _admit(paths, config, launch(paths, config, state, able), state.tenants[0])
        except BaseException:
            _stop(paths, config, states.load(paths, uuids[0]) or state)
            raise


def _able(paths: Paths, config: MpsConfig, uuids: Sequence[str], *, multi_user: bool) -> Abilities:
    """Returns the options that this driver's daemon accepts; there must be one for several users if they are wanted."""
    able = abilities(config.mps_control, paths.mps, uuids, multi_user=multi_user)
    if multi_user and able.multi_user is None:
        why = why_not_started(config.mps_control, paths.mps, uuids)
        if why:
            raise ControlError(why)
        cure = "install driver 580 or later, or set multi_user = false in berth.conf"
        raise CannotShare(f"this driver's MPS serves one user at a time; {cure}")
    return able


def launch(paths: Paths, config: MpsConfig, state: SetState, able: Abilities) -> SetState:
    """Starts daemon and server of a set that is in the books."""
    method, control = method_of(state), control_of(paths, config, state.uuids)
    until = time.monotonic() + config.mps_start_timeout
    options = method.options(able.multi_user if state.multi_user else None)
    try:
        state = replace(state, daemon=daemon.start(paths, control, state, options), servers=())
        states.store(paths, state)
        daemon.await_socket(control, state, until)
    except daemon.EndedAtOnce as ended:
        why = why_not_started(config.mps_control, paths.mps, state.uuids)
        raise ControlError(why or str(ended)) from ended
    modes.set_all(state.uuids, EXCLUSIVE_PROCESS)
    server = method.open(control, state, until)
    daemon.close_files(control)
    state = replace(state, servers=(server,), loose=method.loose(control, state))
    states.store(paths, state)
    return state


def _join(paths: Paths, config: MpsConfig, state: SetState, tenant: Tenant) -> Attached:
    """Attaches a job to GPUs that others share already, or whose Prolog runs a second time."""
    others = state.without(tenant.job).tenants
    foreign = next((other for other in others if other.uid != tenant.uid), None)
    if foreign and not (state.multi_user and config.multi_user):
        raise CannotShare(
            f"GPU {state.uuids[0]} is shared by jobs of user {foreign.uid}, and this site lets no two users share one"
        )
    total = sum(other.share for other in others) + tenant.share
    # An owner keeps all of its GPU, and its guest takes what the guard allows.
    if total > 100 and not (tenant.tier and all(other.tier for other in others)):
        raise CannotShare(f"GPU {state.uuids[0]} would be shared out by {total} %; wait for another job to end")
    now = status_of(paths, config, state)
    if now == "FAULT":
        raise CannotShare(f"MPS on GPU {state.uuids[0]} has just failed and is not clean yet; try again")
    joined = _together(state, tenant, lost=now != "ACTIVE")
    states.store(paths, joined)
    try:
        if now != "ACTIVE":
            joined = revive(paths, config, joined)
        return _admit(paths, config, joined, joined.tenant(tenant.job) or tenant)
    except BaseException:
        remaining = (states.load(paths, state.uuids[0]) or joined).without(tenant.job)
        states.store(paths, remaining)
        if remaining.tenants:
            _leave(paths, config, remaining, tenant)
        else:
            _stop(paths, config, remaining)
        raise


def _together(state: SetState, tenant: Tenant, *, lost: bool) -> SetState:
    """Returns the state with one tenant more; `lost`: MPS is restarted for it, so the others' programs lost theirs."""
    others = state.without(tenant.job).tenants
    known = tuple(replace(one, lost=one.lost or lost, alone_since=0.0) for one in others)
    return replace(state, tenants=known).with_tenant(replace(tenant, alone_since=0.0 if others else time.monotonic()))


def status_of(paths: Paths, config: MpsConfig, state: SetState) -> str:
    """Returns ACTIVE, INITIALIZING or FAULT as the server says; GONE: it died, or the daemon that we started did."""
    if not daemon.running(state):
        return "GONE"
    try:
        return method_of(state).status(control_of(paths, config, state.uuids))
    except ControlError:
        if daemon.running(state):
            raise
        return "GONE"


def revive(paths: Paths, config: MpsConfig, state: SetState) -> SetState:
    """Restarts daemon and server for the tenants in the books, after they died or cannot recover."""
    control, method = control_of(paths, config, state.uuids), method_of(state)
    able = _able(paths, config, state.uuids, multi_user=state.multi_user)
    _send_away(control, state)
    # A program that starts without a daemon would get the GPU without MPS, and keep MPS from coming back.
    modes.set_all(state.uuids, PROHIBITED)
    daemon.stop(paths, control, state, config.mps_stop_timeout)
    state = launch(paths, config, state, able)
    for tenant in state.tenants:
        method.admit(control, state, tenant)
    return state


def _admit(paths: Paths, config: MpsConfig, state: SetState, tenant: Tenant) -> Attached:
    """Sets the job's limits, then opens the pipe to it: a job that cannot be held is not let in."""
    control, method = control_of(paths, config, state.uuids), method_of(state)
    own = method.admit(control, state, tenant)
    state = state.with_tenant(replace(tenant, lost=False, known=losses.causes(control.log)))
    states.store(paths, state)
    notes = []
    if not files.grant(control.pipe, [one.uid for one in state.tenants]):
        notes.append(f"{control.pipe} keeps no access list: other users of the node can reach this MPS daemon")
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(control.pipe),
        **own,
    }
    unset = tuple(name for name in UNSET if name not in environment)
    return Attached(environment, unset, method.level(state, tenant), tuple(notes))


def detach(paths: Paths, config: MpsConfig, job: int, start: int = 0, *, failed: bool = False) -> Detached:
    """Takes a job's shares back; the last job of a GPU ends MPS too. It is no error if there is nothing to do.

    A run of the job that began later than `start` keeps its shares: Slurm may repeat an Epilog, and a job that was
    found to be over may have been started again meanwhile. With `failed` it checks whether MPS had failed under the
    job.
    """
    stopped: list[str] = []
    leftovers: list[str] = []
    loss: Loss | None = None
    for known in list(states.everything(paths)):
        if known.tenant(job) is None:
            continue
        with states.held(paths, known.uuids, _lock_seconds(config)):
            state = states.load(paths, known.uuids[0])
            tenant = state.tenant(job) if state else None
            if state is None or tenant is None or state.boot != processes.boot_id(paths.boot_id):
                continue
            if tenant.is_later_than(start):
                continue
            if failed and state.method != "time":
                ask = partial(status_of, paths, config, state)
                loss = losses.evidence(paths.log(state.name), state.uuids, tenant, ask) or loss
            state = _without(state, job)
            states.store(paths, state)
            if state.tenants:
                leftovers += _leave(paths, config, state, tenant)
            else:
                leftovers += _stop(paths, config, state)
                stopped.append(state.name)
    leftovers += sweep(paths, config)
    return Detached(tuple(stopped), tuple(leftovers), loss)


def _without(state: SetState, job: int) -> SetState:
    """Returns the state without this job; a tenant that is left alone is alone from now on."""
    left = state.without(job)
    if len(left.tenants) != 1:
        return left
    return replace(left, tenants=(replace(left.tenants[0], alone_since=time.monotonic()),))


def _leave(paths: Paths, config: MpsConfig, state: SetState, tenant: Tenant) -> list[str]:
    """Takes a tenant's limits away while others stay."""
    control = control_of(paths, config, state.uuids)
    files.grant(control.pipe, [one.uid for one in state.tenants])
    try:
        if daemon.running(state):
            method_of(state).leave(control, state, tenant)
            return []
    except ControlError as error:
        # A dying daemon still has a process for a moment.
        if daemon.running(state):
            return [str(error)]
    return [f"the MPS daemon of {state.name} died while jobs shared the GPU; the next one starts it anew"]


def _stop(paths: Paths, config: MpsConfig, state: SetState) -> list[str]:
    """Ends MPS on these GPUs and restores them; names what could not be ended, and closes the books anyway.

    Only if the driver fails do they stay, without a job: they hold the GPUs' own compute modes, and the next sweep
    tries again.
    """
    control = control_of(paths, config, state.uuids)
    told = _send_away(control, state)
    closed = True
    try:
        told += daemon.stop(paths, control, state, config.mps_stop_timeout)
        with devices.driver() as nvml:
            for uuid, mode in zip(state.uuids, state.modes, strict=False):
                told += modes.restore(nvml, uuid, mode)
    except DriverError as error:
        told.append(str(error))
        closed = False
        with contextlib.suppress(StateError):
            states.store(paths, replace(state, daemon=None, servers=(), tenants=()))
    finally:
        if closed:
            states.forget(paths, state.uuids)
    return told


def _send_away(control: Control, state: SetState) -> list[str]:
    """Ends clients without a job: `quit` would wait for them, and killing a busy client has undefined results."""
    if not daemon.running(state):
        return []
    method, told = method_of(state), []
    try:
        for pid in method.clients(control):
            method.terminate(control, pid)
            told.append(f"process {pid} was still connected to MPS after its job, and was sent away")
    except ControlError as error:
        told.append(str(error))
    return told
