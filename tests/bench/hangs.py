# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=hangs`: which hangs are told, how late, and how often a job that does not hang is called one.

Jobs are drawn and played look by look (15 s) through the node's law and berthd's. A job trains, and meanwhile one thing
of a kind happens, again and again: a checkpoint, an evaluation, a stall of its data; or it does what has no steps at
all. None of these may be called a hang. Then jobs are drawn that hang, each in one way.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from policy.daemon.hear.still import Hang, StillJobs, StillWord
from policy.formats.slurm_facts import JobFacts
from prolog_epilog.looks.still import JobLook, RankSeen, Rhythm
from prolog_epilog.looks.watch import PERIOD
from tests.bench.looking import cost
from tests.bench.table import Figure, at_least, at_most, report
from tests.unit.policy_world import running

HOURS = 1_000
CASES = 60
SEED = 20_261_130
_HOUR = 3_600.0
_LOOK = 0.05
"""Seconds between two looks of the hooks for where the main thread is."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What happens in one look; of the rank that is ahead of the others' waiting (`one`), and of all others."""

    steps: bool = False
    busy: bool = False
    """The others' GPUs run kernels."""
    one_busy: bool = False
    moves: bool = False
    cores: float = 0.0
    """Work that is not of processes whose GPU runs kernels."""
    spin: float = 0.0
    """Work of those whose GPU does."""
    read: int = 0
    attended: bool = False


@dataclass(slots=True)
class Played:
    """A job and its nodes."""

    random: Random
    nodes: int = 1
    gpus: int = 8
    step_s: float = 1.0
    tells: bool = True
    serves: bool = False
    start: float = 600.0
    """Seconds of preparation and of the first compilation."""
    rhythms: list[Rhythm] = field(default_factory=list)
    heard: StillJobs = field(default_factory=StillJobs)
    now: float = 0.0
    steps: float = 0.0
    moves: int = 0
    told: list[tuple[float, Hang]] = field(default_factory=list)
    loads: float = 0.0
    """Processors of the workers that load data; 0 for data in memory."""
    monitors: float = 0.0
    """Processors of watchdogs and monitors, always."""

    def __post_init__(self) -> None:
        self.rhythms = [Rhythm() for _ in range(self.nodes)]

    @property
    def job(self) -> JobFacts:
        return running(1, "n0", 0xFF, 1.0, start=0, nodes=tuple(f"n{one}" for one in range(self.nodes)))

    def look(self, signs: Signs, slow: int = 0) -> None:
        """Plays 15 s; `slow` is the node of the one rank."""
        self.now += PERIOD
        self.steps += PERIOD / self.step_s if signs.steps else 0.0
        self.moves += signs.moves
        for node, rhythm in enumerate(self.rhythms):
            here = node == slow
            ranks = tuple(
                RankSeen(
                    gpu,
                    int(self.steps) if self.tells and self.steps else -1,
                    signs.one_busy if here and gpu == 0 else signs.busy,
                )
                for gpu in range(self.gpus)
            )
            tells = self.tells and self.steps >= 1.0
            cores = self.monitors + (signs.cores if here or signs.steps else 0.0) + (0.0 if tells else signs.spin)
            moved = (signs.read if here or signs.steps else 0) + self.random.randrange(4_096) * (self.monitors > 0.0)
            look = JobLook(ranks, self.moves, tells, tells, cores * PERIOD, moved, signs.attended)
            rhythm.hear(self.now, PERIOD, look)
            allowed, still = rhythm.allowed(), self.now - rhythm.alive
            if allowed is not None and still >= allowed and not (self.serves and not look.trains):
                word = StillWord(f"n{node}", 1, round(still), round(allowed), ranks)
                self.heard.hear(word, self.now)
        for hang in self.heard.hangs([self.job], self.now).values():
            self.told.append((self.now, hang))

    def go(self, seconds: float, signs: Callable[[], Signs], slow: int = 0) -> None:
        for _ in range(max(1, round(seconds / PERIOD))):
            self.look(signs(), slow)

    def train(self, seconds: float) -> None:
        self.go(seconds, lambda: Signs(True, True, True, False, self.loads, self.gpus, int(self.loads * 1e7)))

    def compile(self, seconds: float, *, others_wait: bool) -> None:
        cores = self.random.uniform(0.3, 8.0)
        moves = self.random.random() < 0.5
        self.go(seconds, lambda: Signs(False, others_wait, False, moves, cores, self.gpus * others_wait))


def train_of(random: Random) -> Played:
    """A job with heartbeats."""
    loads = random.choice([0.0, random.uniform(0.2, 8.0)])
    played = Played(
        random,
        nodes=random.choice([1, 1, 2, 4]),
        gpus=random.choice([1, 2, 4, 8]),
        step_s=random.choice([0.2, 1.0, 5.0, 30.0]),
        loads=loads,
        monitors=random.choice([0.0, random.uniform(0.001, 0.008)]),
    )
    played.compile(random.uniform(30, 1_200), others_wait=False)
    return played


def blind_of(random: Random) -> Played:
    """A job without heartbeats."""
    played = train_of(random)
    played.tells = False
    return played


def checkpoint(one: Played) -> None:
    """One rank writes for up to ten minutes, and its file system stalls for up to three; the others wait."""
    wait = one.random.random() < 0.7
    whole = one.random.uniform(10, 600)
    while whole > 0:
        part = one.random.uniform(15, 240)
        moves, written = one.random.random() < 0.2, int(PERIOD * one.random.uniform(5e6, 2e9))
        writes = Signs(False, wait, False, moves, 0.3, one.gpus, written)
        one.go(min(part, whole), partial(replace, writes))
        if one.random.random() < 0.3:
            one.go(one.random.uniform(15, 180), lambda: Signs(False, wait, False, False, 0.0, one.gpus))
        whole -= part


def evaluation(one: Played) -> None:
    """All ranks compute for up to forty minutes without an optimizer; the hooks see the main thread move by chance."""
    batch, outside = one.random.uniform(0.05, 20.0), one.random.uniform(0.01, 0.5)
    chance = min(1.0, outside / _LOOK)

    def signs() -> Signs:
        batches = max(1, round(PERIOD / (batch + outside)))
        moves = any(one.random.random() < chance for _ in range(min(batches, 60)))
        return Signs(False, True, True, moves, one.loads, one.gpus, int(one.loads * 1e7))

    one.go(one.random.uniform(60, 2_400), signs)


def data_stall(one: Played) -> None:
    """One rank waits for its data, asleep, for up to eight minutes; nothing moves, and the others wait for it."""
    one.go(one.random.uniform(15, 480), lambda: Signs(False, True, False, False, 0.0, one.gpus))


def recompile(one: Played) -> None:
    """One rank compiles anew, for up to twenty minutes, and the others wait."""
    one.compile(one.random.uniform(60, 1_200), others_wait=True)


def debugger(one: Played) -> None:
    """A debugger holds all ranks, for up to two hours."""
    one.go(one.random.uniform(60, 7_200), lambda: Signs(attended=True))


def quiet(one: Played) -> None:
    """A job without heartbeats waits for its data in all processes, for up to twenty-five minutes."""
    one.go(one.random.uniform(60, 1_500), Signs)


def compiles(one: Played) -> None:
    """JAX compiles for up to twenty minutes."""
    one.compile(one.random.uniform(60, 1_200), others_wait=False)


def serves(one: Played) -> None:
    """A service, or a notebook, has no requests for hours."""
    one.serves = True
    one.go(one.random.uniform(600, 20_000), Signs)


def shell(one: Played) -> None:
    """A person at a terminal does nothing for hours."""
    one.go(one.random.uniform(600, 20_000), lambda: Signs(attended=True))


PATTERNS: dict[str, tuple[Callable[[Random], Played], Callable[[Played], None]]] = {
    "checkpoint": (train_of, checkpoint),
    "evaluation": (train_of, evaluation),
    "data_stall": (train_of, data_stall),
    "first_compile": (train_of, recompile),
    "debugger": (train_of, debugger),
    "jax": (blind_of, compiles),
    "jax_waits": (blind_of, quiet),
    "service": (blind_of, serves),
    "shell": (blind_of, shell),
}


def stuck(*, busy: bool, one_busy: bool) -> Callable[[Played], None]:
    """Returns a hang: nothing moves any more, and the GPUs of those that wait in a collective stay busy."""

    def hang(one: Played) -> None:
        slow = one.random.randrange(one.nodes)
        one.go(2.5 * _HOUR, lambda: Signs(False, busy, one_busy, False, 0.0, one.gpus * busy), slow)

    return hang


HANGS: dict[str, tuple[Callable[[Random], Played], Callable[[Played], None]]] = {
    "one_rank_behind": (train_of, stuck(busy=True, one_busy=False)),
    "mismatched_collective": (train_of, stuck(busy=True, one_busy=True)),
    "dead_file_system": (train_of, stuck(busy=False, one_busy=False)),
    "blind_deadlock": (blind_of, stuck(busy=False, one_busy=False)),
    "blind_collective": (blind_of, stuck(busy=True, one_busy=True)),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What was told of the hangs of one kind."""

    told: int
    of: int
    late: tuple[float, ...]
    """Seconds after what the rhythm allowed."""
    after: tuple[float, ...]
    """Seconds after the hang began."""
    named: int


def false_alarms(kind: str, hours: float, random: Random) -> tuple[int, float]:
    """Plays jobs of a pattern for so many hours; returns how many were called hanging, and the hours."""
    begin, event = PATTERNS[kind]
    called, played = 0, 0.0
    while played < hours:
        one = begin(random)
        until = one.now + random.uniform(1, 8) * _HOUR
        while one.now < until:
            one.train(random.uniform(15, 3_000))
            event(one)
        called += bool(one.told)
        played += one.now / _HOUR
    return called, played


def hangs(kind: str, cases: int, random: Random) -> Found:
    """Plays so many jobs that hang in one way."""
    begin, event = HANGS[kind]
    late, after, named = [], [], 0
    for _ in range(cases):
        one = begin(random)
        for _ in range(random.randrange(4)):
            one.train(random.uniform(600, 3_000))
            random.choice([checkpoint, evaluation, data_stall])(one)
        one.train(random.uniform(900, 3_000))
        begun, one.told = one.now, []
        event(one)
        if one.told:
            at, hang = one.told[0]
            late.append(at - begun - hang.allowed)
            after.append(at - begun)
            named += bool(hang.behind)
    return Found(len(after), cases, tuple(late), tuple(after), named)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    figures = []
    for number, kind in enumerate(PATTERNS):
        called, hours = false_alarms(kind, options.hours / len(PATTERNS), Random(options.seed + number))
        figures.append(at_most(f"false_{kind}", called, 0, f"jobs called hanging in {hours:.0f} hours"))
    for number, kind in enumerate(HANGS):
        found = hangs(kind, options.cases, Random(options.seed + 100 + number))
        unit = f"of {found.of} hangs"
        if kind == "blind_collective":
            figures.append(Figure(f"told_{kind}", found.told / found.of, f"{unit}; a busy GPU is a sign of life there"))
            continue
        rate = found.told / found.of
        blind = f"{unit}; a monitor that reads or writes is a sign of life"
        figures.append(
            Figure(f"told_{kind}", rate, blind)
            if kind == "blind_deadlock"
            else at_least(f"told_{kind}", rate, 0.9, unit)
        )
        figures.append(at_most(f"late_{kind}", max(found.late, default=0.0), 120, "s after what its rhythm allowed"))
        figures.append(Figure(f"after_{kind}", statistics.median(found.after or (0.0,)) / 60, "min, the median"))
        if kind == "one_rank_behind":
            figures.append(Figure("rank_named", found.named / max(found.told, 1), "of those told"))
    for kind, part in cost().items():
        unit = "% of a core, 8 GPUs, 72 processes" + (
            "; its sockets are looked for each minute" if kind == "service" else ""
        )
        figures.append(at_most(f"cost_{kind}", 100 * part, 0.5, unit))
    report("hangs", "Jobs that hang, and jobs that do not", figures, {"seed": str(options.seed)})


if __name__ == "__main__":
    main()
