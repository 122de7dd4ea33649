"""Who sits where: hosts and guests of this node's GPUs, by the share files that their Prologs wrote.

A Prolog writes the job into the books before its share file is good, and an Epilog takes it out of them first. So a
good file of a job that is not in the books is one that its Epilog is about to remove, or never came to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog.errors import NodeError, StateError
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import Share

__all__ = ["Member", "Roll", "Seating"]

_Stamp = tuple[int, int, int]
_MTIME = 1


def _stamp(path: Path) -> _Stamp | None:
    """Another one after each change; None where there is no file."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class Member:
    """A host or guest on this node."""

    job: int
    uid: int
    uuids: tuple[str, ...]
    words: Mapping[str, Path]
    """Its word for each of its GPUs; none where it has none."""
    way: str
    mem_mib: int | None = None
    slope: float | None = None
    share: int | None = None
    """Of a guest under MPS, percent of the SMs that it is held to; None: the guard alone holds it."""


@dataclass(slots=True)
class Seating:
    """One GPU."""

    position: int
    host: Member | None = None
    guest: Member | None = None


@dataclass(slots=True)
class _Books:
    """The jobs in the books of each GPU, read again only where anything there changed."""

    paths: Paths
    _stamps: dict[str, _Stamp | None] | None = None
    _jobs: dict[str, frozenset[int] | None] = field(default_factory=dict)
    """None of a GPU whose books cannot be read."""

    def look(self) -> None:
        """See what they say now."""
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
        """Whether they can be read and do not name the job."""
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
    """What was read, and when: a file is read again only where it changed."""

    paths: Paths
    node: str = ""
    """This node, as Slurm calls it."""
    _read: dict[int, tuple[_Stamp, Share | None]] = field(default_factory=dict)
    _books: _Books = field(init=False)

    def __post_init__(self) -> None:
        self._books = _Books(self.paths)

    def seatings(self) -> dict[str, Seating]:
        """Each GPU with a host or a guest, by UUID. There is one seat: of two guests it is the later one's.

        The other's Epilog was lost, and its time in the books ends within a minute or two. So it is with hosts.
        """
        found: dict[str, Seating] = {}
        files = self._files()
        # After the files: who has a good one now was in the books before.
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

    def _files(self) -> list[Share]:
        """All that are good, the latest last."""
        now: dict[int, tuple[_Stamp, Share | None]] = {}
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
        # Not every Slurm says when a run began.
        good = [(file.start, stamp[_MTIME], file) for stamp, file in now.values() if file is not None]
        return [file for *_, file in sorted(good, key=lambda one: one[:2])]

    def _of_tier(self, job: int) -> Share | None:
        try:
            file = share_file.read(self.paths, job)
        except NodeError:
            return None
        good = file is not None and not file.degraded and file.tier in {GUARANTEED, OPPORTUNISTIC}
        return file if good else None


def _member(file: Share) -> Member:
    folder = Path(file.word) if file.word else None
    words = {uuid: folder / uuid for uuid in file.uuids} if folder else {}
    return Member(file.job, file.uid, file.uuids, words, file.way, file.mem_mib, file.slope, file.share)
