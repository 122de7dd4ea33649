"""The list of pinned jobs (docs/formats.md, section 1.4): what the plugin looks at before a user changes a waiting job.

The plugin asks no daemon from job_modify, where slurmctld holds its write locks; it reads this file.
"""

import sys
from array import array
from collections.abc import Iterable
from pathlib import Path

from policy.errors import DaemonError

HEADER = b"berth-pinned/1\n\0"


def write(path: Path, job_ids: Iterable[int]) -> None:
    """Replace the list by these jobs' own ids; a reader sees the former list or the new one, never a part."""
    ids = array("I", sorted(set(job_ids)))
    if sys.byteorder == "big":
        ids.byteswap()
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.write(HEADER + ids.tobytes())
        new.replace(path)
    except OSError as problem:
        raise DaemonError(f"cannot write {path}: {problem.strerror}; [hook] pinned_file says where it lies") from None
