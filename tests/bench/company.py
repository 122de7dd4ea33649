# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=company`: packed jobs put together by room alone, and by what they would lose beside each other too.

Jobs that were measured alone (Lucid, ASPLOS'23) ask for half a GPU each, in random order, until as much was asked for
as there is; `--load` says how much of the cluster that is. Their true speeds are those of the measured pairs, in turn
as they were measured. The fit has seen one half of the pairs, and only the other half is counted. With `picky` a job
that finds bad company alone is not placed: it would wait.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.request.demand import Demand
from policy.request.settings import Sharing
from policy.request.share import EVERYBODY, Mate, Share
from policy.sharing.neighbours import Neighbours, Numbers
from tests.bench import training
from tests.bench.measured_pairs import read_pairs
from tests.bench.table import FOLDER, Figure, at_least, at_most, report
from tests.bench.training import Pairs
from tests.unit.share_world import book, node

DATA = Path(os.environ.get("BERTH_DATA", FOLDER.parents[1].parent / "shared" / "data")) / "traces" / "colocation"
HALF = 50
LEAST = Sharing().least_speed / 100
Speeds = dict[tuple[str, str], float]
"""Of the first job beside the second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one stream of jobs."""

    placed: float
    """Part of what was asked for."""
    alone: float
    """Part of the placed jobs that have a GPU for themselves."""
    speed: float
    """Mean true speed beside others."""
    below: float
    """Part of the jobs beside others that run below `LEAST`."""
    place_ms: float


def kinds_of(pairs: Pairs) -> tuple[dict[str, Numbers], list[tuple[str, str, float, float]]]:
    """The jobs by a name of their own, and the measured pairs of names."""
    known: dict[str, Numbers] = {}
    rows = []
    for first, second, (one, other) in zip(pairs.first, pairs.second, pairs.speeds, strict=True):
        names = []
        for numbers in (first, second):
            name = ":".join(f"{value:.3f}" for value in numbers)
            known[name] = (float(numbers[0]), float(numbers[1]), float(numbers[2]))
            names.append(name)
        rows.append((names[0], names[1], float(one), float(other)))
    return known, rows


def stream(opened: Book, names: Sequence[str], neighbours: Neighbours | None, *, picky: bool) -> tuple[Book, float]:
    """Give each job its place, one after the other; a name that finds none goes without."""
    opened.cluster = replace(opened.cluster, neighbours=neighbours)
    began = time.process_time()
    for name in names:
        share = Share(HALF, 1, EVERYBODY, "time", (1_000, name), picky=picky)
        demand = Demand(1, 1, 1, 1, "node", 3_600, opened.fleet.ready, share=share)
        try:
            berth = opened.now(demand, BerthPolicy())
        except NotNow:
            continue
        opened.claim(claim_on(opened.fleet, demand, berth.nodes, berth.mask, opened.cluster.at))
    return opened, 1_000 * (time.process_time() - began) / len(names)


def outcome(opened: Book, asked: int, took: float, true: Speeds) -> Outcome:
    """What the true speeds say of who is beside whom."""
    together: list[float] = []
    placed = alone = 0
    for there in opened.cluster.tenants.values():
        by_gpu: dict[int, list[str]] = {}
        for tenant in there:
            by_gpu.setdefault(tenant.mask, []).append(tenant.mate[1])
        for mates in by_gpu.values():
            placed += len(mates)
            alone += len(mates) == 1
            if len(mates) == 2 and (mates[0], mates[1]) in true:
                together += [min(1.0, true[mates[0], mates[1]]), min(1.0, true[mates[1], mates[0]])]
    below = statistics.mean(speed < LEAST for speed in together)
    return Outcome(placed / asked, alone / placed, statistics.mean(together), below, took)


def trial(pairs: Pairs, load: float, nodes: int, seed: int) -> dict[str, Outcome]:
    """One stream, placed in three ways."""
    draw = random.Random(seed)
    known, rows = kinds_of(pairs)
    # A pair that was measured twice is wholly in one half.
    halves = {frozenset(row[:2]): draw.random() < 0.5 for row in rows}
    seen = np.array([halves[frozenset(row[:2])] for row in rows])
    fit = training.train(pairs.part(seen), "bench-company")
    _, unseen = kinds_of(pairs.part(~seen))
    true: Speeds = {}
    for first, second, one, other in unseen:
        true[first, second], true[second, first] = one, other
    names = draw.choices(sorted(known), k=round(load * nodes * 8 * 100 / HALF))
    mates: dict[Mate, Numbers] = {(1_000, name): numbers for name, numbers in known.items()}
    found = {}
    for name, picky in (("room alone", False), ("company", False), ("picky", True)):
        neighbours = None if name == "room alone" else Neighbours(mates, fit, least=LEAST, capped=False)
        opened = book([node(f"n{number}") for number in range(nodes)], sharing=Sharing(way="time"))
        opened, took = stream(opened, names, neighbours, picky=picky)
        found[name] = outcome(opened, len(names), took, true)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=32)
    arguments = parser.parse_args()
    if not (DATA / "lucid_colocate_pairs.csv").exists():
        print(f"left out: {DATA} is not there; BERTH_DATA names the folder of traces/", file=sys.stderr)
        return 0
    pairs = read_pairs(DATA / "lucid_colocate_pairs.csv", DATA / "lucid_single.csv")
    figures: list[Figure] = []
    for load in (0.7, 1.0):
        runs = [trial(pairs, load, arguments.nodes, seed) for seed in range(arguments.seeds)]
        figures += _rows(f"load{round(100 * load)}", runs)
    notes = {
        "gpus": str(8 * arguments.nodes), "seeds": str(arguments.seeds), "least": f"{LEAST:g}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    report("company", "Packed jobs beside each other: true speeds of pairs that the fit has not seen", figures, notes)
    return 0


def _rows(name: str, runs: Sequence[dict[str, Outcome]]) -> list[Figure]:
    def mean(way: str, what: str) -> float:
        return float(statistics.mean(getattr(run[way], what) for run in runs))

    peer = "room alone, same jobs"
    room = {what: mean("room alone", what) for what in ("placed", "alone", "speed", "below", "place_ms")}
    rows = [
        at_least(f"{name}_speed", mean("company", "speed"), round(room["speed"], 3), "part of 1", peer, room["speed"]),
        at_most(
            f"{name}_below", mean("company", "below"), round(room["below"], 3), "part of jobs", peer, room["below"]
        ),
        at_most(f"{name}_picky_below", mean("picky", "below"), 0.05, "part of jobs", peer, room["below"]),
    ]
    for way in ("company", "picky"):
        rows += [
            Figure(f"{name}_{way}_{what}", mean(way, what), "part", peer, room[what]) for what in ("placed", "alone")
        ]
    return [
        *rows,
        Figure(f"{name}_picky_speed", mean("picky", "speed"), "part of 1", peer, room["speed"]),
        Figure(f"{name}_place_ms", mean("company", "place_ms"), "ms of CPU a job", peer, room["place_ms"]),
    ]


if __name__ == "__main__":
    sys.exit(main())
