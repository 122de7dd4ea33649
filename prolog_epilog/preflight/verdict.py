"""Judges a failure in a pre-flight: a lost peer, a faulty GPU or too little memory says nothing about the job.

It uses the rules that decide whether a failed job is tried again (docs/failures.md). It applies them to the end of the
script's own log, with the user's own rights. If the cause cannot be found, the failure stands.
"""

import json
import os
import stat
import subprocess
import sys

TAIL_BYTES = 256 * 1024
_SECONDS = 20.0
_TELL_NOTHING = frozenset({"no_signature", "job_preempted"})
"""Classes without meaning here: nothing known was found, or a script reports children that it ended itself."""
_ROOM = frozenset({"gpu_out_of_memory", "cpu_out_of_memory"})
"""Lack of room with one GPU's part of a node: a model that is divided over the job's GPUs need not fit there."""


def passing(status: int) -> str:
    """Returns the class of the failure, if it may pass by itself or is of one GPU alone; else an empty text."""
    program = os.path.join(os.path.dirname(sys.executable), "berth")  # noqa: PTH118, PTH120 - as everywhere here
    command = [program, "classify", "-", "--json", "--exit-code", f"{status}:0"]
    try:
        done = subprocess.run(
            command, input=_log(), capture_output=True, timeout=_SECONDS, check=True, env={"PATH": os.defpath}, cwd="/"
        )
        found = json.loads(done.stdout)
        failure = str(found["class"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return ""
    passes = failure in _ROOM or (found.get("transient") is True and failure not in _TELL_NOTHING)
    return failure if passes else ""


def _log() -> bytes:
    """Returns the ends of this process's output and error, if these are files."""
    texts = []
    seen = set()
    for file in (1, 2):
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            # Open it again: this descriptor may be open for writing only.
            own = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            texts.append(os.pread(own, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES)))
        finally:
            os.close(own)
    return b"\n".join(texts)
