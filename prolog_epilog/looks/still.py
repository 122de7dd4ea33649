# SPDX-License-Identifier: Apache-2.0
"""Tells berthd of jobs in which nothing moves any more: no step, no kernel, no output, no work of a processor.

A job is judged by all of its processes on this node, and by its own rhythm: it may stand still for `_RHYTHM` times as
long as it ever did before it went on. berthd calls it hanging once all of its nodes say the same.

What counts as a sign of life depends on what a job tells. Where each rank tells its steps, and whether its program
moves between them (`MOVED`, launches), a GPU that is busy is none, since a collective that waits keeps it busy. A rank
that compiles, reads or writes shows that by its processor, on a GPU without kernels, and by bytes. Of any other job
every sign counts, however small.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from prolog_epilog.injob import word
from prolog_epilog.injob.errors import InjobError
from prolog_epilog.looks.gpu_use import SeenGpu
from prolog_epilog.looks.signs import ProcessSigns, serves, signs_of
from prolog_epilog.node import cgroups, freezer
from prolog_epilog.node.paths import Paths

_FLOOR_S, _FLOOR_BLIND_S = 600.0, 1_800.0
"""The least time that a job may stand still: one whose ranks tell their steps, and any other."""
_RHYTHM = 3.0
_AGAIN_S = 60.0
"""Seconds after which it is told again, as long as it lasts."""
_LEAST_STEPS = 8
_BUSY_CORES, _BLIND_CORES = 0.05, 0.01
"""Processors from which on their work is a sign of life."""
_BYTES = 1 << 20
"""Bytes between two looks from which on they are one; watchdogs and monitors move fewer."""


class RankSeen(NamedTuple):
    """A GPU of a job, and the rank on it."""

    position: int
    steps: int
    """-1 if no rank tells."""
    busy: bool


class JobLook(NamedTuple):
    """One look at a job's part on this node; numbers are sums that only grow while the same processes live."""

    ranks: tuple[RankSeen, ...]
    moves: int
    """Launches, and moves of the programs between two steps."""
    tells: bool
    """True if each rank tells its steps and its moves."""
    trains: bool
    """True if each rank runs PyTorch's hooks, which count the steps of an optimizer."""
    cpu_s: float
    """Work of processors since the look before; if the job tells, of processes without a kernel of theirs."""
    moved: int
    """Bytes read and written since the look before."""
    attended: bool
    """True if a person is at work on it, by a terminal or a debugger."""

    @property
    def steps(self) -> int:
        """Returns the steps of all ranks."""
        return sum(max(one.steps, 0) for one in self.ranks)


@dataclass(slots=True)
class Rhythm:
    """One job, from look to look."""

    began: float = 0.0
    alive: float = 0.0
    """Time of the last sign of life."""
    longest: float = 0.0
    """The longest time that it stood still and then went on."""
    worked: bool = False
    last: JobLook | None = None

    def hear(self, now: float, seconds: float, look: JobLook) -> None:
        """Takes the next look, so many seconds after the one before."""
        before, self.last = self.last, look
        if before is None or before.tells != look.tells or look.steps < before.steps:
            self.began = self.alive = now
            return
        busy = any(one.busy for one in look.ranks)
        self.worked |= busy
        least = _BUSY_CORES if look.tells else _BLIND_CORES
        moves = (look.steps, look.moves) != (before.steps, before.moves) or look.attended
        works = look.cpu_s >= least * seconds or look.moved >= (_BYTES if look.tells else 1)
        if moves or works or (busy and not look.tells):
            self.longest = max(self.longest, now - seconds - self.alive)
            self.alive = now

    def allowed(self) -> float | None:
        """Returns for how long the job may stand still; None if it has not worked so that this could be known."""
        if self.last is None or not self.worked:
            return None
        if self.last.tells:
            enough = self.last.steps >= _LEAST_STEPS * len(self.last.ranks)
            return max(_FLOOR_S, _RHYTHM * self.longest) if enough else None
        return max(_FLOOR_BLIND_S, _RHYTHM * self.longest) if self.alive - self.began >= _FLOOR_S else None


@dataclass(frozen=True, slots=True)
class StillNotice:
    """A job in which nothing moves on this node (docs/develop/formats.md)."""

    node: str
    job: int
    since_s: float
    allowed_s: float
    ranks: tuple[RankSeen, ...]

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        ranks = ",".join(f"{one.position}:{one.steps if one.steps >= 0 else '-'}:{one.busy:d}" for one in self.ranks)
        spans = f"for={self.since_s:.0f} allowed={self.allowed_s:.0f}"
        return f"berth/1 still node={self.node} job={self.job} {spans} ranks={ranks}"


class StillLooks:
    """The jobs on this node that have their GPUs for themselves."""

    def __init__(self, paths: Paths, node: str, pids_of: Callable[[int], Iterable[int]] = freezer.pids) -> None:
        self._paths, self._node, self._pids_of = paths, node, pids_of
        self._rhythms: dict[int, Rhythm] = {}
        self._signs: dict[int, dict[int, ProcessSigns]] = {}
        self._told: dict[int, float] = {}
        self._before = 0.0

    def look(self, now: float, gpus: Iterable[SeenGpu]) -> list[StillNotice]:
        """Looks at each job; returns what is to be told now."""
        by_job: dict[int, list[SeenGpu]] = {}
        for gpu in gpus:
            # Beside others nobody can tell whose kernels run.
            if len(jobs := {cgroups.job_of(pid) for pid in gpu.pids}) == 1 and (job := jobs.pop()):
                by_job.setdefault(job, []).append(gpu)
        for kept in (self._rhythms, self._signs, self._told):
            for job in kept.keys() - by_job.keys():
                del kept[job]
        seconds, self._before = now - self._before, now
        for job, mine in by_job.items():
            self._rhythms.setdefault(job, Rhythm()).hear(now, seconds, self._look_at(job, mine))
        return [notice for job in by_job if (notice := self._due(job, now))]

    def _due(self, job: int, now: float) -> StillNotice | None:
        rhythm = self._rhythms[job]
        allowed, still = rhythm.allowed(), now - rhythm.alive
        if allowed is None or still < allowed or rhythm.last is None or now - self._told.get(job, -_AGAIN_S) < _AGAIN_S:
            return None
        self._told[job] = now
        # A service or a notebook waits for its users.
        if not rhythm.last.trains and serves(self._pids_of(job)):
            return None
        return StillNotice(self._node, job, still, allowed, rhythm.last.ranks)

    def _look_at(self, job: int, gpus: list[SeenGpu]) -> JobLook:
        ranks, moves, tells, trains = [], 0, True, True
        for gpu in gpus:
            beats = _beats(self._paths, job, gpu.uuid)
            stepping = [one for one in beats if one.steps]
            tells = tells and bool(stepping) and any(one.moved or one.launches for one in beats)
            moves += sum(one.moved + one.launches for one in beats)
            trains = trains and any(one.moved for one in stepping)
            steps = max((one.steps for one in stepping), default=-1)
            ranks.append(RankSeen(gpu.position, steps, gpu.busy))
        spinning = set(chain.from_iterable(gpu.pids for gpu in gpus if gpu.busy)) if tells else ()
        before = self._signs.get(job, {})
        now = {pid: found for pid in self._pids_of(job) if (found := signs_of(pid))}
        self._signs[job] = now
        none = ProcessSigns(0.0, 0, attended=False)
        new = [(pid, one, before.get(pid, none)) for pid, one in now.items()]
        cpu_s = sum(max(one.cpu_s - was.cpu_s, 0.0) for pid, one, was in new if pid not in spinning)
        moved = sum(max(one.moved - was.moved, 0) for _, one, was in new)
        attended = any(one.attended for one in now.values())
        return JobLook(tuple(ranks), moves, tells, tells and trains, cpu_s, moved, attended)


def _beats(paths: Paths, job: int, uuid: str) -> tuple[word.WordBeat, ...]:
    try:
        return word.read_beats(paths.word(job) / uuid)
    except (InjobError, OSError):
        return ()
