# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=stragglers`: how often `berth why --slow` names the right cause and rank, over drawn jobs.

A job has 2 to 256 ranks. Each has a speed of its own (0.6 % apart) and noise from step to step; one thing disturbs the
job, or nothing. Times are those of each step with its operations, or medians of hours as the guard records them.
The thresholds of policy/history/slowness/job.py were set on other draws (`--seed`) than those of the figures.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policy.formats.arrays import Floats
from policy.history.slowness.job import Blame, Known, Slowness, analyse
from policy.history.slowness.sources import StepRank, StepTimes
from tests.bench.table import Figure, at_least, at_most, report

SEED = 20_261_126
CASES = 150
KINDS = ("even", "gpu", "part", "role", "two", "node", "stage", "data", "lengths", "pauses", "stalls", "mixed")
"""Kinds of drawn jobs. `part`: a GPU is slow for a part of the time; `role`: a rank has more to do on a sound GPU;
`mixed`: a slow GPU beside pauses or stalls, which must both be named."""
CAUSES = {"part": "gpu", "role": "gpu", "two": "gpu", "lengths": "data"}
"""The cause that must be named where it is not the kind itself."""


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """One job and its truth."""

    kind: str
    times: StepTimes
    known: Known
    ranks: frozenset[int]
    """The disturbed ranks, empty where the program is to blame."""
    blame: Blame | None


def draw(rng: np.random.Generator, kind: str) -> DrawnJob:
    """Draws a job of this kind."""
    per_node = int(rng.choice([4, 8]))
    nodes = int(rng.choice([2, 4, 8, 16, 32] if kind in {"node", "stage"} else [1, 2, 4, 8, 16, 32]))
    ranks, rows = per_node * nodes, int(rng.integers(40, 400))
    if kind in {"even", "gpu"} and rng.random() < 0.1:
        per_node, ranks = 2, 2
    source = "guard" if kind in {"even", "gpu", "part", "node"} and rng.random() < 0.4 else "ops"
    if source == "guard":
        rows = int(rng.integers(4, 40))
    # A row of the guard is the median of thousands of steps; a kernel's time differs by a percent from step to step.
    noise = rng.uniform(0.001, 0.003) if source == "guard" else rng.uniform(0.003, 0.012)
    level, share = rng.uniform(50.0, 2_000.0), rng.uniform(0.25, 0.45)
    speeds = np.exp(rng.normal(0.0, 0.006, ranks))
    forward = level * share * speeds * np.exp(rng.normal(0.0, noise, (rows, ranks)))
    backward = level * (1 - share) * speeds * np.exp(rng.normal(0.0, noise, (rows, ranks)))
    whole = level * 0.02 * np.exp(rng.normal(0.0, 0.1, (rows, ranks)))
    ops: dict[str, Floats] = {"forward": forward, "backward": backward, "input": whole}
    hit, known, blame, stages, micro = _disturb(rng, kind, ops, per_node)
    if source == "guard":
        ops = {"step": np.asarray(sum(ops.values()))}
    members = tuple(
        StepRank(
            None if source == "guard" else rank,
            f"n{rank // per_node}",
            rank % per_node,
            f"GPU-{rank}",
            None if stages is None else stages[rank],
        )
        for rank in range(ranks)
    )
    times = StepTimes("guard" if source == "guard" else "ops", members, ops, np.ones(rows), micro)
    return DrawnJob(kind, times, known, frozenset(hit), blame)


def _disturb(  # noqa: PLR0912 - a row of kinds, each on its own
    rng: np.random.Generator, kind: str, ops: dict[str, Floats], per_node: int
) -> tuple[list[int], dict[tuple[str, int], float], Blame | None, list[int] | None, int]:
    rows, ranks = ops["forward"].shape
    known: dict[tuple[str, int], float] = {}
    factor = 1.0 + float(rng.uniform(0.06, 0.6))
    hit: list[int] = []

    def place(rank: int) -> tuple[str, int]:
        return f"n{rank // per_node}", rank % per_node

    def slow(rank: int, begin: int = 0, end: int = rows, by: float = factor) -> None:
        for one in ("forward", "backward"):
            ops[one][begin:end, rank] *= by

    match kind:
        case "gpu" | "two" | "role":
            hit = [int(one) for one in rng.choice(ranks, 2 if kind == "two" else 1, replace=False)]
            for rank in hit:
                slow(rank, by=1.0 + float(rng.uniform(0.06, 0.6)))
            if kind == "role" or rng.random() < 0.5:
                known = {place(rank): float(rng.normal(1.0, 0.005)) for rank in range(ranks)}
                known |= {} if kind == "role" else {place(rank): factor for rank in hit}
                return hit, known, "software" if kind == "role" else "hardware", None, 0
            return hit, known, "unknown", None, 0
        case "part":
            hit = [int(rng.integers(ranks))]
            length = int(rows * rng.uniform(0.25, 0.6))
            begin = int(rng.integers(0, rows - length))
            slow(hit[0], begin, begin + length, 1.0 + float(rng.uniform(0.12, 0.6)))
            return hit, known, "hardware", None, 0
        case "node":
            node = int(rng.integers(ranks // per_node))
            hit = list(range(node * per_node, (node + 1) * per_node))
            for rank in hit:
                slow(rank)
            return hit, known, "hardware", None, 0
        case "stage":
            count = int(rng.choice([2, 4, 8]))
            stages = [rank * count // ranks for rank in range(ranks)]
            heavy = count - 1 if rng.random() < 0.7 else int(rng.integers(count))
            hit = [rank for rank in range(ranks) if stages[rank] == heavy]
            for rank in hit:
                slow(rank)
            return hit, known, "software", stages, int(rng.choice([0, 8, 32]))
        case "mixed":
            hit, *_ = _disturb(rng, "gpu", ops, per_node)
            _disturb(rng, str(rng.choice(["pauses", "stalls"])), ops, per_node)
            return hit, known, None, None, 0
        case "data" | "lengths":
            sizes = np.exp(rng.normal(0.0, rng.uniform(0.06, 0.3), (rows, ranks)))
            others = sizes if kind == "lengths" else np.exp(rng.normal(0.0, 0.1, (rows, ranks)))
            ops["forward"] *= sizes
            ops["backward"] *= others
            return [], known, "software", None, 0
        case "pauses":
            # About a part of all steps has one rank that stands still.
            for row in np.flatnonzero(rng.random(rows) < rng.uniform(0.08, 0.6)):
                ops["forward"][row, rng.integers(ranks)] += ops["backward"][0, 0] * rng.uniform(0.8, 3.0)
            return [], known, "software", None, 0
        case "stalls":
            some = rng.random(rows) < rng.uniform(0.05, 0.3)
            ops["input"][some] += ops["backward"][0, 0] * rng.uniform(0.8, 4.0)
            return [], known, "software", None, 0
    return [], known, None, None, 0


def named(found: Slowness, case: DrawnJob) -> tuple[bool, bool, bool]:
    """Tells whether the cause, the ranks and the blame are right."""
    if case.kind == "mixed":
        both = {"gpu"} < {one.cause for one in found.parts}
        return both, both and _hit(found, "gpu") == case.ranks, both
    cause = found.cause == CAUSES.get(case.kind, case.kind)
    if case.kind in {"gpu", "part", "role", "two", "node", "stage"}:
        ranks = cause and _hit(found, found.cause) == case.ranks
    else:
        ranks = cause
    blame = cause and (case.blame is None or found.parts[0].blame == case.blame)
    return cause, ranks, blame


def _hit(found: Slowness, cause: str) -> set[int]:
    """Returns the places of the ranks that a cause names: the guard knows no number of a rank."""
    return {found.times.ranks.index(one) for part in found.parts if part.cause == cause for one in part.ranks}


def cases(seed: int, number: int) -> list[DrawnJob]:
    """Draws so many jobs of each kind."""
    rng = np.random.default_rng(seed)
    return [draw(rng, kind) for _ in range(number) for kind in KINDS]


def figures(drawn: Sequence[DrawnJob], judge: Callable[[DrawnJob], Slowness]) -> tuple[list[Figure], dict[str, str]]:
    """Returns the figures, and what was named in place of the truth."""
    right: dict[str, list[tuple[bool, bool, bool]]] = {kind: [] for kind in KINDS}
    instead: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    lost = []
    for case in drawn:
        found = judge(case)
        right[case.kind].append(named(found, case))
        if not right[case.kind][-1][0]:
            instead[case.kind][found.cause] += 1
        if case.kind == "even":
            lost.append(bool(found.parts))
    made = []
    for kind, one in right.items():
        cause, ranks, blame = (float(np.mean([row[which] for row in one])) for which in range(3))
        made.append(at_least(f"cause_{kind}", cause, 0.9, "of jobs"))
        if kind in {"gpu", "part", "role", "two", "node", "stage", "mixed"}:
            made.append(at_least(f"ranks_{kind}", ranks, 0.9, "of jobs"))
        if kind in {"gpu", "part", "role"}:
            made.append(at_least(f"blame_{kind}", blame, 0.9, "of jobs"))
    false = float(np.mean(lost))
    made.append(at_most("false_alarms", false, 0.02, "of even jobs"))
    notes = {
        f"{kind} taken for": ", ".join(f"{what} {n}" for what, n in some.items())
        for kind, some in instead.items()
        if some
    }
    return made, notes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--cases", type=int, default=CASES)
    options = parser.parse_args()
    drawn = cases(options.seed, options.cases)
    made, notes = figures(drawn, lambda case: analyse(case.times, case.known))
    report(
        "stragglers", "What made a drawn job slow", made, {"jobs": str(len(drawn)), "seed": str(options.seed), **notes}
    )


if __name__ == "__main__":
    main()
