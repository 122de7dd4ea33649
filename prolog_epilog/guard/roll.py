# SPDX-License-Identifier: Apache-2.0
"""The roll: owners (hosts in names) and guests of this node's GPUs, from the share files that their Prologs wrote.

A Prolog writes the job into the books before its share file is good, and an Epilog takes it out of them first. So if a
good file's job is not in the books, its Epilog is about to remove the file, or never came to it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog.errors import NodeError, StateError
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord

_Stamp = tuple[int, int, int]
_MTIME = 1


def _stamp(path: Path) -> _Stamp | None:
    """Returns a stamp that differs after each change of the file; None if there is no file."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class Member:
    """An owner or guest on this node."""

    job: int
    uid: int
    uuids: tuple[str, ...]
    words: Mapping[str, Path]
    """The path of its word for each of its GPUs; empty if it has none."""
    way: str
    mem_mib: int | None = None
    slope: float | None = None
    share: int | None = None
    """For a guest under MPS, the percentage of the SMs that it is held to; None: only the guard holds it."""
    need: tuple[int, int] | None = None
    """For a guest: its owner's job, and the MiB of each GPU that berthd knows that job to need."""
    start: int = 0
    """The start of its run: after a lost Epilog the next run may begin between two looks."""


@dataclass(slots=True)
class Seating:
    """The jobs on one GPU."""

    position: int
    host: Member | None = None
    guest: Member | None = None


@dataclass(slots=True)
class _Books:
    """The jobs in the books of each GPU; they are read again only if a file there changed."""

    paths: Paths
    _stamps: dict[str, _Stamp | None] | None = None
    _jobs: dict[str, frozenset[int] | None] = field(default_factory=dict)
    """The jobs by GPU; None for a GPU whose books cannot be read."""

    def look(self) -> None:
        """Reads the books again if they changed."""
        try:
            uuids = os.listdir(self.paths.gpus)  # noqa: PTH208 - ten times a second
        except FileNotFoundError:
            uuids = []
        except OSError:
            return
        stamps = {uuid: _stamp(self.paths.gpus / uuid / "state.json") for uuid in uuids}
        if stamps != self._stamps:
            self._stamps, self._jobs = stamps, {uuid: self._on(uuid) for uuid in uuids}

    def deny(self, job: int, uuid: str) -> bool:
        """Tells whether the books can be read and do not name the job."""
        jobs = self._jobs.get(uuid, frozenset())
        return jobs is not None and job not in jobs

    def _on(self, uuid: str) -> frozenset[int] | None:
        try:
            found = state.load(self.paths, uuid)
        except StateError:
            return None
        return frozenset(tenant.job for tenant in found.tenants) if found else frozenset()


@dataclass(slots=True)
class Roll:
    """The share files that were read, and their stamps: a file is read again only if it changed."""

    paths: Paths
    node: str = ""
    """The name of this node in Slurm."""
    _read: dict[int, tuple[_Stamp, ShareRecord | None]] = field(default_factory=dict)
    _books: _Books = field(init=False)

    def __post_init__(self) -> None:
        self._books = _Books(self.paths)

    def seatings(self) -> dict[str, Seating]:
        """Returns each GPU with an owner or a guest, by UUID. It has one seat: of two guests the later one has it.

        The Epilog of the earlier guest was lost, and its time in the books ends within a minute or two. The same holds
        for owners.
        """
        found: dict[str, Seating] = {}
        files = self._files()
        # Read the books after the files: a job with a good file now was in the books before.
        self._books.look()
        for file in files:
            self.node = file.node or self.node
            member = _member(file)
            for uuid, position in zip(file.uuids, file.gpus, strict=False):
                if self._books.deny(file.job, uuid):
                    continue
                place = found.setdefault(uuid, Seating(position))
                if file.tier == GUARANTEED:
                    place.host = member
                else:
                    place.guest = member
        return found

    def _files(self) -> list[ShareRecord]:
        """Returns all good share files, the latest last."""
        now: dict[int, tuple[_Stamp, ShareRecord | None]] = {}
        try:
            names = os.listdir(self.paths.jobs)  # noqa: PTH208 - ten times a second
        except OSError:
            names = []
        for name in filter(str.isdecimal, names):
            stamp = _stamp(self.paths.jobs / name)
            if stamp is None:
                continue
            known = self._read.get(int(name))
            now[int(name)] = known if known and known[0] == stamp else (stamp, self._of_tier(int(name)))
        self._read = now
        # Not every release of Slurm says when a run began.
        good = [(file.start, stamp[_MTIME], file) for stamp, file in now.values() if file is not None]
        return [file for *_, file in sorted(good, key=lambda one: one[:2])]

    def _of_tier(self, job: int) -> ShareRecord | None:
        try:
            file = share_file.read(self.paths, job)
        except NodeError:
            return None
        good = file is not None and not file.degraded and file.tier in {GUARANTEED, OPPORTUNISTIC}
        return file if good else None


def _member(file: ShareRecord) -> Member:
    folder = Path(file.word) if file.word else None
    words = {uuid: folder / uuid for uuid in file.uuids} if folder else {}
    told = file.mem_mib, file.slope, file.share, file.need, file.start
    return Member(file.job, file.uid, file.uuids, words, file.way, *told)
