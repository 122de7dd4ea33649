"""Whether a failure in a pre-flight says anything of the job: a lost peer, a faulty GPU or too little room does not.

By the same rules that decide whether a failed job is tried again (docs/failures.md), on the end of the script's own
log, with the user's own rights. Where that cannot be found out the failure stands.
"""

import json
import os
import stat
import subprocess
import sys

TAIL_BYTES = 256 * 1024
_SECONDS = 20.0
_TELL_NOTHING = frozenset({"no_signature", "job_preempted"})
"""Nothing known was found; and what a script says of children that it ended itself."""
_ROOM = frozenset({"gpu_out_of_memory", "cpu_out_of_memory"})
"""A model that is divided over the GPUs of the job need not fit one of them, with one GPU's part of a node."""


def passing(status: int) -> str:
    """What the failure was, by the class's name, if it may pass by itself or is of one GPU alone; else nothing."""
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
    """The ends of what this process writes its output and its errors to, where those are files."""
    texts = []
    seen = set()
    for file in (1, 2):
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            # Anew: this one may be open for writing only.
            own = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            texts.append(os.pread(own, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES)))
        finally:
            os.close(own)
    return b"\n".join(texts)
