"""The runner: starts a job's script on one GPU, and lets it run until it is seen to work (docs/preflight.md).

    python -I -m prolog_epilog.preflight.runner --seconds=N -- SCRIPT [ARGUMENT...]
    python -I -m prolog_epilog.preflight.runner launch NAME [ARGUMENT...]

SPANK puts the first form before the script of a pre-flight; the launchers of many processes call the second. All of it
runs with the rights of the job's user. If the script ends before its first step, the pre-flight ends with the script's
status. A first step, `berth ready` or the end of the time end it with success.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from prolog_epilog.injob import word
from prolog_epilog.injob.errors import InjobError
from prolog_epilog.messages import PREFLIGHT, tagged
from prolog_epilog.preflight import shims, verdict
from prolog_epilog.preflight.launchers import HERE, cut

GRACE = 10.0
"""Seconds that the script's processes have after SIGTERM; they are part of its time."""
LOOK_EVERY = 0.1
_HOOKS = Path(__file__).resolve().parents[1] / "injob" / "site"
_WORD = "GPU-preflight"
_PROGRAM = (sys.executable, "-I", "-m", "prolog_epilog.preflight.runner")
"""The command that starts Berth's own Python, whatever the user's environment says to Pythons."""


def main() -> int:
    """Runs the program."""
    words = sys.argv[1:]
    if words[:1] == ["launch"] and len(words) > 1:
        launch(words[1], words[2:])
    if len(words) < 3 or not words[0].removeprefix("--seconds=").isdecimal() or words[1] != "--":
        _say("usage: python -I -m prolog_epilog.preflight.runner --seconds=N -- SCRIPT [ARGUMENT...]")
        return 2
    return run(int(words[0].removeprefix("--seconds=")), words[2:])


def launch(name: str, words: Sequence[str]) -> NoReturn:
    """Becomes a launcher of one process."""
    mine = os.environ.get("BERTH_SHIMS", "")
    program = shims.find(name, os.environ.get("PATH", ""), mine)
    if not program:
        _say(f"{name}: command not found")
        sys.exit(127)
    less = cut(name, words)
    if less != list(words):
        _say(f"within a pre-flight {name} starts one process: {name} {' '.join(less)}")
    os.execv(program, [program, *less])


def run(seconds: int, command: Sequence[str]) -> int:
    """Runs the whole pre-flight; returns its exit status."""
    until = time.monotonic() + seconds
    folder = Path(tempfile.mkdtemp(prefix="berth-preflight-"))
    try:
        return _watch(command, folder, until)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watch(command: Sequence[str], folder: Path, until: float) -> int:
    environment = prepare(folder, os.environ)
    started = time.monotonic()
    told = _Told()
    signal.signal(signal.SIGTERM, told.hear)
    try:
        # Start it in a group of its own, so that all of it can be ended.
        script = subprocess.Popen(command, env=environment, process_group=0)
    except OSError as problem:
        _say(f"{command[0]}: {problem.strerror}")
        return 126 if isinstance(problem, PermissionError) else 127
    told.pass_on_to(script)
    grace = min(GRACE, (until - started) / 4)
    works = _sign_of_life(environment)
    while script.poll() is None:
        if sign := works():
            return _end_well(script, grace, f"{sign} after {time.monotonic() - started:.0f} s")
        if time.monotonic() >= until - grace:
            return _end_well(script, grace, f"nothing went wrong in {time.monotonic() - started:.0f} s")
        time.sleep(LOOK_EVERY)
    status = script.returncode
    said = "ended well" if status == 0 else f"failed with {_status(status)}"
    _say(f"the script {said} after {time.monotonic() - started:.0f} s")
    by_itself = status not in {0, -signal.SIGTERM} and not told.heard
    if by_itself and (cause := verdict.passing(128 - status if status < 0 else status)):
        _say(f"{cause}: that says nothing against the job, which may start")
        return 0
    if status == -signal.SIGTERM:
        # It was ended by SIGTERM: end by that signal too, as Slurm expects of any job.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    return status if status >= 0 else 128 - status


def prepare(folder: Path, outer: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """Returns the environment of the script."""
    own = shims.write(folder, _PROGRAM)
    added = {
        HERE: "1",
        shims.READY: str(folder / "ready"),
        "BERTH_SHIMS": str(own),
        "PATH": ":".join([str(own), *([outer["PATH"]] if outer.get("PATH") else [])]),
        **shims.functions(_PROGRAM),
    }
    if outer.get("BERTH_INJOB") != "off":
        path = outer.get("PYTHONPATH", "")
        added["PYTHONPATH"] = f"{_HOOKS}:{path}" if path else str(_HOOKS)
        if not outer.get("BERTH_WORD"):
            try:
                (made,) = word.create(folder / "words", [_WORD], os.getuid(), os.getgid())
                added["BERTH_WORD"] = str(made)
            except (InjobError, OSError) as problem:
                _say(f"no step of the script can be seen: {problem}")
    return {**outer, **added}


def _sign_of_life(environment: dict[str, str]) -> Callable[[], str]:
    """Returns a function that says why the script works; the text is empty as long as nothing shows that."""
    ready = Path(environment[shims.READY])
    words = [Path(one) for one in environment.get("BERTH_WORD", "").split(":") if one]

    def look() -> str:
        if ready.exists():
            return "it said that it is ready"
        for one in words:
            try:
                beats = word.read_beats(one)
            except (InjobError, OSError):
                continue
            if any(beat.steps > 0 or beat.ready for beat in beats):
                return "its first step was done"
        return ""

    return look


def _end_well(script: "subprocess.Popen[bytes]", grace: float, why: str) -> int:
    _say(f"{why}: the pre-flight ends here, and the job itself may start")
    # What ends now was ended by us, not by the job.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _signal(script, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        script.wait(grace)
    _signal(script, signal.SIGKILL)
    script.wait()
    return 0


def _signal(script: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(script.pid, number)


class _Told:
    """Handles Slurm's signal to end the pre-flight: passes it to the script, whose status is then reported."""

    def __init__(self) -> None:
        self.heard = False
        self._script: subprocess.Popen[bytes] | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        """Handles the signal."""
        self.heard = True
        if self._script is not None:
            _signal(self._script, number)

    def pass_on_to(self, script: "subprocess.Popen[bytes]") -> None:
        """Passes on signals from now on, and one that was heard before."""
        self._script = script
        if self.heard:
            _signal(script, signal.SIGTERM)


def _status(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"


def _say(sentence: str) -> None:
    sys.stderr.write(f"berth-preflight: {tagged(sentence, PREFLIGHT)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
