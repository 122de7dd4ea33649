# SPDX-License-Identifier: Apache-2.0
"""Arrivals of jobs on a GPU on which a guest runs: Prolog and guard agree by files in /run/berth/arrivals.

The Prolog first shuts the guest's gate, which needs no other process; the gate opens by itself later. Then it leaves a
note for the guard, which alone freezes and ends guests. It waits for the guard's answer, for some seconds at most.
"""

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import NodeError, NodeFormatError
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.job.extra import OPPORTUNISTIC
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord

FORMAT = "berth-arrival/1"
WAIT_SECONDS = 6.0
"""A guest that ignores everything delays the first task by no more than this."""
SHUT_SECONDS = 10.0
"""Seconds for which a gate that the Prolog shut stays shut; a living guard takes over within a tenth of a second."""

_POLL_SECONDS = 0.02
_MOST = 4_096


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job with whole GPUs that takes no guest beside it."""

    job: int
    uuids: tuple[str, ...]
    planned: bool
    """True if it has a berth: then its guest may save its work, else the guest ends at once."""


def guests_on(paths: Paths, uuids: Sequence[str]) -> list[ShareRecord]:
    """Returns the share files of the guests on these GPUs."""
    return share_file.sharing(paths, uuids, OPPORTUNISTIC)


def shut(guest: ShareRecord, uuids: Sequence[str]) -> None:
    """Shuts a guest's gate on these GPUs for some seconds, and gives it no more memory until the guard says how much.

    A guest without a word is left to the guard.
    """
    for uuid in set(guest.uuids) & set(uuids) if guest.word else ():
        with suppress(WordError, OSError):
            page = word.OrderPage(Path(guest.word) / uuid)
            page.give(0, quota=1, lease_s=SHUT_SECONDS)
            page.close()


def meet(paths: Paths, arrival: Arrival, say: Callable[[str], None], seconds: float = WAIT_SECONDS) -> None:
    """Holds back guests on the GPUs of a job with whole GPUs, until the guard has dealt with them; for its Prolog."""
    guests = guests_on(paths, arrival.uuids)
    if not guests:
        return
    for guest in guests:
        shut(guest, arrival.uuids)
    names = ", ".join(f"job {guest.job}" for guest in guests)
    if not paths.guard.exists():
        say(f"{names} sits as a guest on a GPU of job {arrival.job}, and berth-guard does not run; start it")
        return
    announce(paths, arrival)
    # A guard that does not run now may be starting again: an update restarts it.
    until = time.monotonic() + seconds
    while not _answer(paths, arrival.job).exists():
        if time.monotonic() > until:
            what = "did not answer" if guard_lives(paths) else "has not come back"
            say(f"the guard {what} for {seconds:.0f} s: {names} may still use a GPU of job {arrival.job}")
            return
        time.sleep(_POLL_SECONDS)


def announce(paths: Paths, arrival: Arrival) -> None:
    """Leaves the note for the guard, and takes away the guard's answer to an earlier run of the job."""
    files.own_folder(paths.arrivals)
    _answer(paths, arrival.job).unlink(missing_ok=True)
    text = f"{FORMAT}\nuuids={','.join(arrival.uuids)}\nplanned={arrival.planned:d}\n"
    files.write(paths.arrivals / str(arrival.job), text)


def pending(paths: Paths) -> list[Arrival]:
    """Returns all arrivals whose guests have not all gone yet."""
    try:
        names = os.listdir(paths.arrivals)  # noqa: PTH208 - ten times a second
    except OSError:
        return []
    found = []
    for name in names:
        if name.isdecimal():
            with suppress(NodeError):
                found.append(_read(paths, int(name)))
    return found


def _read(paths: Paths, job: int) -> Arrival:
    lines = (files.read(paths.arrivals / str(job), _MOST) or "").split("\n")
    if len(lines) != 4 or lines[0] != FORMAT or lines[2] not in {"planned=0", "planned=1"}:
        raise NodeFormatError(f"{paths.arrivals / str(job)} is not {FORMAT}; remove it")
    return Arrival(job, tuple(lines[1].removeprefix("uuids=").split(",")), lines[2] == "planned=1")


def answer(paths: Paths, job: int) -> None:
    """Answers the Prolog, for the guard: nothing on these GPUs harms the job."""
    with suppress(OSError):
        _answer(paths, job).touch()


def forget(paths: Paths, job: int) -> None:
    """Removes the note of an arrival that is done. The answer stays for a Prolog that still looks for it."""
    with suppress(OSError):
        (paths.arrivals / str(job)).unlink()


def clean(paths: Paths, known: Callable[[int], bool]) -> None:
    """Removes the files of jobs that are over."""
    with suppress(OSError):
        for path in paths.arrivals.iterdir():
            job = path.name.removesuffix(".safe")
            if job.isdecimal() and not known(int(job)):
                path.unlink(missing_ok=True)


def _answer(paths: Paths, job: int) -> Path:
    return paths.arrivals / f"{job}.safe"


def hold_guard(paths: Paths) -> int:
    """Makes the caller the one guard of this node while the descriptor is open; returns -1 if another one lives."""
    files.prepare(paths)
    return files.sole(paths.guard)


def guard_lives(paths: Paths) -> bool:
    """Tells whether a guard runs on this node. A record lock is not inherited: it ends with the guard itself."""
    try:
        handle = os.open(paths.guard, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
