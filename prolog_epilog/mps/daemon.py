# SPDX-License-Identifier: Apache-2.0
"""Starts and ends a control daemon, which belongs to the node and never to the job that happened to come first."""

import contextlib
import os
import subprocess
import time

from prolog_epilog.errors import CannotShare, ControlError, HardwareFault
from prolog_epilog.mps.control import COMMAND_SECONDS, Control
from prolog_epilog.node import files, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState

LOG = "control.log"
_POLL_SECONDS = 0.02
_LEAVE_SECONDS = 2.0
#: Seconds to end after SIGTERM; short, because the processes had time while `quit` timed out.
_TERM_SECONDS = 3.0


class EndedAtOnce(ControlError):
    """A daemon that was started and is gone before it takes commands."""


def running(state: SetState) -> bool:
    """Tells whether the set's daemon is alive: the very process that Berth started."""
    return state.daemon is not None and processes.alive(state.daemon, state.boot)


def start(paths: Paths, control: Control, state: SetState, options: tuple[str, ...]) -> Proven:
    """Starts the daemon in the foreground of a session of its own: so its number is known, not read from a file.

    In the foreground it keeps no log files. Its own and its servers' output goes to `control.log`.
    """
    control.check_path()
    folder = paths.mps_set(state.name)
    files.remove_folder(folder)
    files.own_folder(folder, files.THROUGH)
    files.own_folder(control.pipe)
    files.own_folder(control.log)
    argv = [control.program, "-f", *options]
    if paths.systemd.is_dir():
        pid = _as_unit(paths, control, state, argv)
    else:
        try:
            pid = processes.start_detached(argv, control.environment, control.log / LOG)
        except OSError as error:
            raise ControlError(f"{control.program} cannot be run ({error.strerror}); check its rights") from error
    proven = processes.prove(pid, state.boot)
    if proven is None:
        raise _ended(control, state)
    return proven


def _ended(control: Control, state: SetState) -> EndedAtOnce:
    return EndedAtOnce(f"the MPS daemon of {state.name} ended at once; look at {control.log}/{LOG}")


def await_socket(control: Control, state: SetState, until: float) -> None:
    """Waits until the daemon's socket is there, then opens the folder to the tenants; a command shows if it works."""
    while not os.path.lexists(control.pipe / "control") and running(state) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    if not running(state):
        raise _ended(control, state)
    # The server runs as the tenants' user and has to pass through as they do; all other users are kept out.
    files.grant(control.pipe, [tenant.uid for tenant in state.tenants])


def close_files(control: Control) -> None:
    """Takes away that all users may write the daemon's lock and its number: no user needs to, and a file has no bound.

    The daemon writes its number after its socket is there, and before it answers.
    """
    for path in control.pipe.iterdir():
        if path.is_file():
            path.chmod(0o644)


def _unit(state: SetState) -> str:
    return f"berth-mps-{state.name}.service"


def _as_unit(paths: Paths, control: Control, state: SetState, argv: list[str]) -> int:
    """Starts the daemon as a systemd unit; without one it would stay in slurmd's unit, and end with it."""
    unit = _unit(state)
    _systemd(str(paths.systemctl), "reset-failed", unit, quiet=True)
    settings = [f"--setenv={name}={value}" for name, value in control.environment.items()]
    properties = ["--property=OOMScoreAdjust=-900", "--property=KillMode=control-group", "--property=Type=exec"]
    properties += [f"--property=Standard{stream}=append:{control.log / LOG}" for stream in ("Output", "Error")]
    text = "--description=CUDA MPS for jobs that share GPUs"
    _systemd(
        str(paths.systemd_run), "--quiet", "--collect", f"--unit={unit}", text, *properties, *settings, "--", *argv
    )
    shown = _systemd(str(paths.systemctl), "show", "--property=MainPID", "--value", unit)
    return int(shown) if shown.isdigit() else 0


def _systemd(program: str, *words: str, quiet: bool = False) -> str:
    try:
        done = subprocess.run(
            [program, *words],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=not quiet,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotShare(f"systemd does not start the MPS daemon ({error}); try systemctl status by hand") from error
    return done.stdout.strip()


def stop(paths: Paths, control: Control, state: SetState, patience: float) -> tuple[str, ...]:
    """Ends the daemon and its servers: by `quit`, then SIGTERM, then SIGKILL, each process proven to be ours.

    Returns a line for each process that did not end by itself; one that cannot be ended at all is a HardwareFault.
    """
    told = []
    ours = _ours(control, state)
    if running(state):
        with contextlib.suppress(ControlError):
            control.tell("quit", patience)
            _await_end(ours, state.boot)
    for process in ours:
        if processes.alive(process, state.boot):
            if not processes.end(process, state.boot, _TERM_SECONDS):
                raise HardwareFault(f"MPS on GPU {state.uuids[0]} (process {process.pid}) cannot be killed; reboot")
            told.append(f"process {process.pid} ({process.program}) had to be ended")
    if paths.systemd.is_dir():
        with contextlib.suppress(CannotShare):
            _systemd(str(paths.systemctl), "stop", _unit(state), quiet=True)
    files.remove_folder(paths.mps_set(state.name))
    return tuple(told)


def _ours(control: Control, state: SetState) -> list[Proven]:
    """Returns daemon and servers: those in the books, and those that a killed Prolog had no time to write down."""
    ours = [process for process in (state.daemon, *state.servers) if process]
    daemons = [state.daemon.pid] if state.daemon and running(state) else []
    if state.daemon is None:
        daemons = list(processes.serving(control.program, f"CUDA_MPS_PIPE_DIRECTORY={control.pipe}"))
    for pid in daemons:
        # A server that was still starting is not in the books, but it is the daemon's child.
        found = (processes.prove(one, state.boot) for one in (pid, *processes.children(pid)))
        ours += [process for process in found if process and process not in ours]
    return ours


def _await_end(ours: list[Proven], boot: str) -> None:
    """Waits for the servers, which end by themselves soon after their daemon."""
    until = time.monotonic() + _LEAVE_SECONDS
    while time.monotonic() < until and any(processes.alive(process, boot) for process in ours):
        time.sleep(_POLL_SECONDS)
