"""`make bench-gate`: planning passes and notices beside a fixed piece of Python and numpy, against a kept baseline.

Each figure is a ratio within one run, so machines do not matter much. Exit status 1 where one is beyond the band.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.bench.plan import World, events, passes

BASELINE = Path(__file__).with_name("gate.json")
BAND = 1.5
"""A ratio may be so many times that of the baseline."""

NODES, WAITING, ROUNDS = 256, 500, 5


def naive() -> float:
    """Milliseconds of a fixed work: small objects in Python, and sums in numpy."""
    began = time.perf_counter()
    rows = [{"id": number, "free": number % 9} for number in range(20_000)]
    rows.sort(key=lambda row: (-row["free"], row["id"]))
    free = np.array([row["free"] for row in rows])
    for _ in range(50):
        free.cumsum()
    return 1_000 * (time.perf_counter() - began)


def ratios(rounds: int = ROUNDS) -> dict[str, float]:
    """Returns the least ratio of several rounds: other work on the machine only adds to one."""
    found: dict[str, list[float]] = {"pass over naive": [], "notice over naive": []}
    for _ in range(rounds):
        world = World(NODES, WAITING, seed=1)
        fleet = world.fleet()
        before = min(naive() for _ in range(5))
        took = statistics.median(passes(world, fleet, 10)), statistics.median(events(world, fleet, 20))
        peer = min(before, *(naive() for _ in range(5)))
        for name, one in zip(found, took, strict=True):
            found[name].append(one / peer)
    return {name: round(min(values), 4) for name, values in found.items()}


def beyond(measured: Mapping[str, float], baseline: Mapping[str, float], band: float = BAND) -> list[str]:
    """Returns a sentence for each figure that is beyond the band, or is missing on one side."""
    told = [f"{name}: is not in both the run and the baseline" for name in sorted(measured.keys() ^ baseline.keys())]
    return told + [
        f"{name}: {measured[name]:.4f}, more than {band:g} times {baseline[name]:.4f}"
        for name in sorted(measured.keys() & baseline.keys())
        if measured[name] > band * baseline[name]
    ]


def main() -> int:
    """Measures, prints, and compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gate", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="write this run's figures as the baseline")
    options = parser.parse_args()
    measured = ratios()
    if options.renew:
        BASELINE.write_text(json.dumps(measured, indent=2) + "\n")
    baseline = json.loads(BASELINE.read_text())
    for name, value in measured.items():
        sys.stdout.write(f"bench-gate: {name} {value:.4f}, baseline {baseline.get(name, 0):.4f}\n")
    told = beyond(measured, baseline)
    for line in told:
        sys.stderr.write(f"bench-gate: {line}\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
