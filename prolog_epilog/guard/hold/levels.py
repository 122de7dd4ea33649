# SPDX-License-Identifier: Apache-2.0
"""The levels: what really holds each share of this node. Raises the kernel's memory wall, counts, and tells berthd."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from prolog_epilog.errors import Busy, NodeError
from prolog_epilog.job.escape import escape
from prolog_epilog.mps.walls import raise_wall
from prolog_epilog.node import cgroups, freezer, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants import state as states
from prolog_epilog.tenants.share_file import ShareRecord

Counts = Mapping[tuple[int, str, str], int]
"""The number of jobs by the position and UUID of a GPU, and the level at which they are held there."""

_MOST_TEXT = 400
"""The most bytes of the sentence, escaped: berthd takes lines of 1,024 bytes."""
_AGAIN = 60.0
"""Seconds until berthd is told again after it did not answer."""


@dataclass(frozen=True, slots=True)
class LevelNotice:
    """The notice that says how a job's share is held on this node (docs/develop/formats.md)."""

    node: str
    job: int
    level: str
    sentence: str

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        sentence = self.sentence
        while len(escape(sentence)) > _MOST_TEXT:
            sentence = sentence[:-1]
        return f"berth/1 level node={self.node} job={self.job} level={escape(self.level)} text={escape(sentence)}"


_Stamp = tuple[int, int]


@dataclass(slots=True)
class EnforcedLevels:
    """The levels of this node: one look a second, in the thread that may wait."""

    paths: Paths
    tell: Callable[[LevelNotice], bool]
    """Sends a notice; true if the berthd in charge has taken it."""
    say: Callable[[str], None]
    counts: Counts = field(default_factory=dict)
    """Replaced as a whole, since another thread reads it."""
    _read: dict[int, tuple[_Stamp, ShareRecord | None]] = field(default_factory=dict)
    _told: dict[int, _Stamp] = field(default_factory=dict)
    _walled: set[int] = field(default_factory=set)
    _not_before: float = 0.0

    def look(self) -> None:
        """Reads what is new, raises walls, counts jobs by level, and tells berthd."""
        files = self._files()
        for job, (stamp, file) in files.items():
            if file is not None and job not in self._walled and file.way == "mps" and file.mem_mib is not None:
                self._wall(file, stamp)
        self._walled &= files.keys()
        held = [file for _, file in self._read.values() if file is not None]
        self.counts = Counter(
            (position, uuid, file.level) for file in held for position, uuid in zip(file.gpus, file.uuids, strict=False)
        )
        self._tell_all()

    def _files(self) -> dict[int, tuple[_Stamp, ShareRecord | None]]:
        """Returns the share files of jobs that have a share; a file is read again only if it changed."""
        now: dict[int, tuple[_Stamp, ShareRecord | None]] = {}
        try:
            names = os.listdir(self.paths.jobs)  # noqa: PTH208 - once a second
        except OSError:
            names = []
        for job in (int(name) for name in names if name.isdecimal()):
            try:
                status = os.lstat(self.paths.job(job))
            except OSError:
                continue
            stamp = (status.st_ino, status.st_mtime_ns)
            known = self._read.get(job)
            now[job] = known if known is not None and known[0] == stamp else (stamp, self._share(job))
        self._read = now
        return now

    def _share(self, job: int) -> ShareRecord | None:
        try:
            file = share_file.read(self.paths, job)
        except NodeError:
            return None
        return file if file is not None and not file.degraded and file.level else None

    def _wall(self, file: ShareRecord, stamp: _Stamp) -> None:
        """Raises the memory wall at the first look that finds the job's control group.

        Slurm makes that group after the Prolog.
        """
        # Control groups v1 have no such wall.
        groups = freezer.jobs_groups(file.job) if cgroups.version() == "v2" else []
        if not groups:
            return
        try:
            # Hold the locks of its GPUs: its Epilog takes the job out of the books under them, and then removes the
            # file.
            with states.held(self.paths, file.uuids, 0.0):
                state = states.load(self.paths, file.uuids[0])
                if state is None or state.boot != processes.boot_id(self.paths.boot_id) or not state.tenant(file.job):
                    return
                # The file read above may be of the run before, or may have changed since.
                if self._share(file.job) != file:
                    return
                self._walled.add(file.job)
                level = raise_wall(self.paths, file.job, groups[0])
                if level is not None:
                    share_file.write(self.paths, replace(file, level=level.name, level_text=level.text))
        except Busy:
            return
        except NodeError as problem:
            self.say(f"the kernel does not hold the memory of job {file.job}: {problem}")
            return
        if level is not None:
            # The next look reads the new level and tells it.
            self._told[file.job] = stamp

    def _tell_all(self) -> None:
        self._told = {job: stamp for job, stamp in self._told.items() if job in self._read}
        for job, (stamp, file) in self._read.items():
            if file is None or not file.node or self._told.get(job) == stamp or time.monotonic() < self._not_before:
                continue
            try:
                heard = self.tell(LevelNotice(file.node, job, file.level, file.level_text))
            except (NodeError, OSError) as problem:
                self.say(f"berthd was not told: {problem} [BERTH-935]")
                heard = False
            if heard:
                self._told[job] = stamp
            else:
                self._not_before = time.monotonic() + _AGAIN
