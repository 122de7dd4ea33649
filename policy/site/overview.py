# SPDX-License-Identifier: Apache-2.0
"""Reads berthd's overview (docs/develop/formats.md, 11.7), and removes data that a user may not see.

berthd's planning process writes it, into one file with the data of the metrics. The read-only process, and commands
of Slurm's user and root, read it.
"""

import json
import pwd
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from policy.formats.errors import DaemonError

T = TypeVar("T")

SCHEMA_VERSION = 1
"""The version of the overview and of the replies made from it."""

MOST_JOBS = 10_000
"""The most waiting jobs in an overview, and the most jobs in a reply to `queue`."""

MOST_BYTES = 16_777_216
"""The most bytes of a reply: 100,000 GPUs take about 5 MB, and 10,000 jobs 2 MB."""


STALE_AFTER = 30.0
"""Seconds after which a reading is stale: no job is placed by it, and lists show their age."""


def path_of(socket: Path) -> Path:
    """Returns the overview's path, beside this socket of berthd's."""
    return socket.with_name(f"{socket.name}.overview")


@lru_cache(maxsize=4_096)
def user_of(uid: int) -> str:
    """Returns a user's name on this host; the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class StateFile(Generic[T]):
    """A file that berthd replaces whole; it is read again only after that. Threads may share it."""

    def __init__(self, path: Path, decode: Callable[[bytes], T]) -> None:
        self._path, self._decode = path, decode
        self._last: tuple[tuple[int, ...], T] | None = None

    def read(self) -> T:
        """Returns the decoded content; raises OSError, and exceptions of `decode`."""
        found, last = self._path.stat(), self._last
        key = found.st_ino, found.st_mtime_ns, found.st_size
        if last is None or last[0] != key:
            self._last = last = key, self._decode(self._path.read_bytes())
        return last[1]


class OverviewFile:
    """The file of the overview."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, StateFile(path, json.loads)

    def read(self) -> dict[str, Any]:
        """Returns the overview; raises DaemonError with the reason if there is none."""
        try:
            found = self._file.read()
        except OSError as problem:
            text = f"{self._path} cannot be read ({problem.strerror}); is berthd running? Root and Slurm's user read it"
            raise DaemonError(text) from None
        except ValueError:
            raise DaemonError(f"{self._path} is not what berthd writes; restart berthd") from None
        if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
            raise DaemonError(f"{self._path} is of another release; install all of Berth from one")
        return found


def fleet_for(overview: Mapping[str, Any], visible: int | None = None) -> dict[str, Any]:
    """Returns the reply to `fleet`. `visible` is the only user whose jobs are named; None: all jobs are named."""
    kept = {key: overview[key] for key in ("schema_version", "at", "nodes", "idle")}
    if visible is None:
        return kept
    own = {job["id"] for job in overview["jobs"] if job["user_id"] == visible}
    idle = [one for one in overview["idle"] if one["job"] in own]
    return {**kept, "nodes": [_without_others(node, own) for node in overview["nodes"]], "idle": idle}


def queue_for(overview: Mapping[str, Any], asker: int | None = None, visible: int | None = None) -> dict[str, Any]:
    """Returns the reply to `queue`; if there are too many jobs, those of `asker` are kept first."""
    jobs = [job for job in overview["jobs"] if visible is None or job["user_id"] == visible]
    kept = jobs
    if len(jobs) > MOST_JOBS:
        chosen = sorted(range(len(jobs)), key=lambda place: (jobs[place]["user_id"] != asker, place))[:MOST_JOBS]
        kept = [jobs[place] for place in sorted(chosen)]
    left_out = overview["left_out"] + len(jobs) - len(kept)
    return {"schema_version": overview["schema_version"], "at": overview["at"], "jobs": kept, "left_out": left_out}


def idle_text(job: Mapping[str, Any], at: float) -> str:
    """Returns a text on a job's idle GPUs: their number, the time, and if the job is interactive by salloc's name.

    >>> idle_text({"gpus": 8, "name": "train", "idle": {"gpus": 2, "since": 400}}, 8_000)
    '2 of its 8 GPUs have run no kernel for 2 h 6 min'
    """
    idle = job["idle"]
    hours, minutes = divmod(int(at - idle["since"]) // 60, 60)
    kind = "; it is interactive" if job["name"] == "interactive" else ""
    return f"{idle['gpus']} of its {job['gpus']} GPUs have run no kernel for {hours} h {minutes} min{kind}"


def hang_text(hang: Mapping[str, Any], at: float) -> str:
    """Returns a text on a job that hangs: the time without a sign of life, and the ranks that are behind.

    >>> hang_text({"since": 400, "allowed": 600, "behind": "n1:3 runs no kernel while the others wait"}, 1_300)
    'nothing has moved for 15 min, and its own rhythm explains 10; n1:3 runs no kernel while the others wait'
    """
    minutes, explained = (at - hang["since"]) / 60, hang["allowed"] / 60
    behind = f"; {hang['behind']}" if hang["behind"] else ""
    return f"nothing has moved for {minutes:.0f} min, and its own rhythm explains {explained:.0f}{behind}"


def running_of(overview: Mapping[str, Any], job_id: int) -> dict[str, str]:
    """Returns texts on a running job: why it is `slow`, that it `hangs`, or that it is `idle`."""
    job: Mapping[str, Any] = next((job for job in overview["jobs"] if job["id"] == job_id), {})
    told = {"slow": job["slow"]} if "slow" in job else {}
    told |= {"hangs": hang_text(job["hangs"], overview["at"])} if "hangs" in job else {}
    return {**told, "idle": idle_text(job, overview["at"])} if "idle" in job else told


def _without_others(node: Mapping[str, Any], own: set[int]) -> dict[str, Any]:
    found = {**node, "gpus": [_cell_without_others(cell, own) for cell in node["gpus"]]}
    if "use" in node:
        # What a GPU does tells what its jobs do.
        found["use"] = [
            use if jobs_of(cell) <= own and cell["state"] != "taken" else None
            for cell, use in zip(node["gpus"], node["use"], strict=True)
        ]
    return found


def jobs_of(cell: Mapping[str, Any]) -> set[int]:
    """Returns the jobs on a GPU."""
    return {cell.get("owner"), cell.get("guest"), *(part["job"] for part in cell.get("packed", ()))} - {None}


def _cell_without_others(cell: Mapping[str, Any], own: set[int]) -> dict[str, Any]:
    """Returns a cell without the numbers of other users' jobs; that the GPU is taken is not private."""
    found = dict(cell)
    for key in ("owner", "guest", "planned"):
        if key in cell and cell[key] not in own:
            found[key] = None
    if "packed" in cell:
        found["packed"] = [
            part if part["job"] in own else {"job": None, "percent": part["percent"]} for part in cell["packed"]
        ]
    return found
