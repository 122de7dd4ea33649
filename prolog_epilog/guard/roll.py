"""Who sits where: hosts and guests of this node's GPUs, by the share files that their Prologs wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog import share_file
from prolog_epilog.errors import NodeError
from prolog_epilog.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.paths import Paths
from prolog_epilog.share_file import Share

__all__ = ["Member", "Roll", "Seating"]

_Stamp = tuple[int, int, int]


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
class Roll:
    """What was read, and when: a file is read again only where it changed."""

    paths: Paths
    node: str = ""
    """This node, as Slurm calls it."""
    _read: dict[int, tuple[_Stamp, Share | None]] = field(default_factory=dict)

    def seatings(self) -> dict[str, Seating]:
        """Each GPU with a host or a guest, by UUID. The first guest of a GPU counts: there is one seat."""
        found: dict[str, Seating] = {}
        for file in self._files():
            self.node = file.node or self.node
            member = _member(file)
            for uuid, position in zip(file.uuids, file.gpus, strict=False):
                place = found.setdefault(uuid, Seating(position))
                if file.tier == GUARANTEED:
                    place.host = place.host or member
                else:
                    place.guest = place.guest or member
        return found

    def _files(self) -> list[Share]:
        now: dict[int, tuple[_Stamp, Share | None]] = {}
        try:
            names = os.listdir(self.paths.jobs)  # noqa: PTH208 - ten times a second
        except OSError:
            names = []
        for name in filter(str.isdecimal, names):
            try:
                status = os.lstat(self.paths.jobs / name)
            except OSError:
                continue
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(int(name))
            now[int(name)] = known if known and known[0] == stamp else (stamp, self._of_tier(int(name)))
        self._read = now
        return [file for _, (_, file) in sorted(now.items()) if file is not None]

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
