# SPDX-License-Identifier: Apache-2.0
"""The runner: starts a job's script on one GPU, and lets it run until it is seen to work (docs/user/preflight.md).

    python -I -m prolog_epilog.preflight.runner SECONDS[,RULE] -- SCRIPT [ARGUMENT...]

SPANK puts this before the script of a pre-flight, and all of it runs with the rights of the job's user. A first step,
`berth ready` or the end of the time end the pre-flight with success. If the script fails before, the pre-flight has the
script's status. The runner cancels the job that waits for the pre-flight if the failure says something about that job.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prolog_epilog.injob import word
from prolog_epilog.injob.errors import InjobError
from prolog_epilog.messages import PREFLIGHT, tagged

GRACE = 10.0
"""Seconds that the script's processes have after SIGTERM; they are part of its time."""
LOOK_EVERY = 0.1
ASK_EVERY = 30.0
"""Seconds after which Slurm is asked again whether the job still waits."""
LOOKS, LOOKS_OF_MUST = 5, 17
"""Looks for the job, 1, 2, 3, ... s apart: for 10 s and for 136 s. sbatch itself tries to submit a job for 120 s."""
_HOOKS = Path(__file__).resolve().parents[1] / "injob" / "site"
_HOW = re.compile(r"([0-9]{1,9})(?:,(must|site))?")

_OF_ONE_GPU = frozenset({"gpu_out_of_memory", "cpu_out_of_memory", "mpi_error", "cuda_init_failed"})
"""Classes of failures that a job on all of its GPUs need not have."""
_TELL_NOTHING = frozenset({"no_signature", "job_preempted"})
"""Transient classes that count: nothing known was found, or a script reports children that it ended itself."""
_MISTAKES = frozenset({"import_error", "syntax_error"})
"""Classes that depend neither on the number of GPUs nor on the node."""


def main() -> int:
    """Runs the program."""
    how = _HOW.fullmatch(sys.argv[1]) if len(sys.argv) > 3 and sys.argv[2] == "--" else None
    if how is None:
        _say("usage: python -I -m prolog_epilog.preflight.runner SECONDS[,RULE] -- SCRIPT [ARGUMENT...]")
        return 2
    return run(int(how[1]), how[2] or "asked", sys.argv[3:])


def run(seconds: int, rule: str, command: Sequence[str]) -> int:
    """Runs the whole pre-flight; returns its exit status."""
    # The job is submitted just after its pre-flight, which may be here before.
    looks = LOOKS_OF_MUST if rule == "must" else LOOKS
    job = _job_that_waits(looks)
    if job == "":
        _say("no job waits for this pre-flight, which ends here")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="berth-preflight-"))
    # Slurm sends SIGTERM to all processes of the script, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        status = _watch(command, folder, seconds, job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if status:
        _conclude(status, rule, 1 if job else looks)
    return status


def _watch(command: Sequence[str], folder: Path, seconds: int, job: str | None) -> int:
    environment = prepare(folder, os.environ)
    started, grace = time.monotonic(), min(GRACE, seconds / 4)
    ask_at = started + ASK_EVERY
    try:
        # Start it in a group of its own, so that all of it can be ended.
        script = subprocess.Popen(command, env=environment, process_group=0)
    except OSError as problem:
        _say(f"{command[0]}: {problem.strerror}")
        return 126 if isinstance(problem, PermissionError) else 127
    words = [Path(one) for one in environment.get("BERTH_WORD", "").split(":") if one]
    while script.poll() is None:
        sign = _sign_of_life(folder / "ready", words)
        if job and not sign and time.monotonic() >= ask_at:
            ask_at += ASK_EVERY
            sign = "its job waits no more" if _job_that_waits() == "" else ""
        if sign or time.monotonic() >= started + seconds - grace:
            _say(f"{sign or 'nothing went wrong'} in {time.monotonic() - started:.0f} s: the pre-flight ends well")
            _end(script, grace)
            return 0
        time.sleep(LOOK_EVERY)
    status = script.returncode if script.returncode >= 0 else 128 - script.returncode
    _say(f"the script ended with exit status {status} after {time.monotonic() - started:.0f} s")
    return status


def prepare(folder: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the script."""
    added = {"BERTH_PREFLIGHT": "1", "BERTH_READY": str(folder / "ready")}
    if outer.get("BERTH_INJOB") != "off":
        path = outer.get("PYTHONPATH", "")
        added["PYTHONPATH"] = f"{_HOOKS}:{path}" if path else str(_HOOKS)
        if not outer.get("BERTH_WORD"):
            try:
                (made,) = word.create(folder / "words", ["GPU-preflight"], os.getuid(), os.getgid())
                added["BERTH_WORD"] = str(made)
            except (InjobError, OSError) as problem:
                _say(f"no step of the script can be seen: {problem}")
    return {**outer, **added}


def _sign_of_life(ready: Path, words: Sequence[Path]) -> str:
    """Returns why the script works; the text is empty as long as nothing shows that."""
    if ready.exists():
        return "the script said that it is ready"
    for one in words:
        with suppress(InjobError, OSError):
            if any(beat.steps > 0 or beat.ready for beat in word.read_beats(one)):
                return "the first step was done"
    return ""


def _end(script: "subprocess.Popen[bytes]", grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(script.pid, number)
        with suppress(subprocess.TimeoutExpired):
            script.wait(grace)


def _slurm(*words: str) -> str | None:
    """Returns what a command of Slurm prints, without the user's settings for it; None if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_"))}
    try:
        return subprocess.run(words, env=clean, stdout=subprocess.PIPE, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _job_that_waits(looks: int = 1) -> str | None:
    """Returns the job that waits for this pre-flight; empty if none does, None if Slurm cannot be asked."""
    first = re.compile(rf"^([0-9]+) afterany:{os.environ.get('SLURM_JOB_ID')}\b", re.MULTILINE)
    for pause in range(looks):
        time.sleep(pause)
        queue = _slurm("squeue", "--me", "--all", "--noheader", "--states=PENDING", "--format=%A %E")
        if queue is None:
            return None
        if found := first.search(queue):
            return found[1]
    return ""


def _conclude(status: int, rule: str, looks: int) -> None:
    """Cancels the job if the script's failure says something about it, and the job still waits."""
    # A cancelled pre-flight has SIGTERM itself now, and does not come to the next line.
    time.sleep(LOOK_EVERY)
    failure, transient = ("any failure", False) if rule == "must" else _class_of(status)
    if not is_final(rule, failure, transient=transient):
        _say(f"{failure}: that says nothing certain about the job, which may start")
        return
    job = _job_that_waits(looks)
    if job == "":
        _say(f"{failure}: no job waits for this pre-flight any more, so none is cancelled")
    elif job is None or _slurm("scancel", "--state=PENDING", job) is None:
        _say(f"{failure}: the job cannot be cancelled from here, as Slurm does not answer")
    else:
        _say(f"{failure}: job {job}, which waits for this pre-flight, is cancelled")


def is_final(rule: str, failure: str, *, transient: bool) -> bool:
    """Tells whether a failure ends the job itself; under the site's own rule only a mistake does."""
    if rule == "site":
        return failure in _MISTAKES
    return rule == "must" or (failure not in _OF_ONE_GPU and (not transient or failure in _TELL_NOTHING))


def _class_of(status: int) -> tuple[str, bool]:
    """Returns the class of a failure by the script's log (docs/admin/failures.md), and whether it may pass."""
    program = str(Path(sys.executable).with_name("berth"))
    log = f"/proc/{os.getpid()}/fd/2"
    command = [program, "classify", log, "--json", "--exit-code", f"{status}:0"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True, env={"PATH": os.defpath}, cwd="/")
        found = json.loads(done.stdout)
        return str(found["class"]), found["transient"] is True
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return "a failure whose log could not be read", True


def _say(sentence: str) -> None:
    sys.stderr.write(f"berth-preflight: {tagged(sentence, PREFLIGHT)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
