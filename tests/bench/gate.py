# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=gate`: a fast part of each benchmark, against the figures that were kept at the last release.

A time is told as a ratio within its run: to the benchmark's own peer, else to a fixed piece of Python and numpy beside
it. So machines do not matter much. Other figures are compared as they are. All parts run twice, and of both the better
figure counts: other work on the machine only makes it worse.

Exit status: 0 all is within its band; 1 something is not; 3 what was measured is well, but not all could be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import plan
from tests.bench.table import FOLDER_NAME, machine

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("gate.json")
ROUNDS = 2
NOT_ALL = 3
WITHIN = 600.0
"""Seconds that a part may take."""


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark, and the words that make it short. `name` is what it calls its figures' file."""

    name: str
    words: str
    timed: bool = False
    """True if its figures hang on the clock, also those that are no times."""
    clusters: bool = False

    @property
    def command(self) -> list[str]:
        module, *words = self.words.split()
        return [sys.executable, "-m", f"tests.bench.{module}", *words]


PARTS = (
    Part("topology", "topology --nodes 2000 --graphs 3", timed=True),
    Part("scrape", "scrape --scrapes 5", timed=True),
    Part("load-small", "load small", timed=True),
    Part("node", "node --rounds 5", timed=True),
    Part("injob", "injob --launches 1000000 --rounds 3 --seconds 2", timed=True),
    Part("guard", "guard --pairs 30"),
    Part("packing", "packing --seeds 1 --every 8"),
    Part("company", "company --seeds 1 --nodes 8"),
    Part("predictor", "predictor"),
    Part("matching", "matching --seeds 1 --hosts 200 --guests 200"),
    Part("sharing-day", "sharing_day --gpus 100 --fleets idle,muxflow --rules least_loaded,all"),
    Part("scores", "scores --quick"),
    Part("stragglers", "stragglers --cases 20"),
    Part("classify", "classify"),
    Part("runtime", "runtime"),
    Part("simulate", "simulate --jobs 2000"),
    Part("placement", "placement --quick --family flat"),
    Part("placement-speed", "placement_speed", timed=True),
    Part("hook", "hook --turns 2 --jobs 50", timed=True, clusters=True),
    Part("gateway", "gateway --rounds 3", timed=True, clusters=True),
)


class BrokenPartError(Exception):
    """A part failed, which is no reason to leave it out."""


LESS, MORE = "less", "more"
_TIMES = ("ns", "us", "ms", "s", "CPU")
_BANDS = {"time": 1.5, "rate": 1.25, "MB": 1.25, "as it is": 1.05}
"""A figure may be so many times as bad as the kept one, by its kind."""
_BY_CHANCE = frozenset({"load-small burst_seen_s"})
"""Times that hang on when a tick of berthd falls."""
_OF_A_MODEL = frozenset({"guard reaction_s"})
"""Times of a simulated clock."""
_LEAST = 0.005
"""What is not a time may be worse by so much in any case: a part of nothing is nothing."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A figure, which way is better, and its kind."""

    value: float
    better: str
    kind: str

    @property
    def limit(self) -> float:
        """Returns the worst value within the band."""
        band = _BANDS[self.kind]
        if self.kind in ("time", "rate"):
            return self.value * band if self.better == LESS else self.value / band
        room = max(abs(self.value) * (band - 1), _LEAST)
        return self.value + room if self.better == LESS else self.value - room

    def worse_than(self, other: Kept) -> bool:
        """Tells whether the other is better."""
        return self.value > other.value if self.better == LESS else self.value < other.value


def naive() -> float:
    """Milliseconds of a fixed work: small objects in Python, and sums in numpy."""
    began = time.perf_counter()
    rows = [{"id": number, "free": number % 9} for number in range(20_000)]
    rows.sort(key=lambda row: (-row["free"], row["id"]))
    free = np.array([row["free"] for row in rows])
    for _ in range(50):
        free.cumsum()
    return 1_000 * (time.perf_counter() - began)


def planned() -> dict[str, Kept]:
    """Returns what a planning pass and a notice take, of 500 jobs on 256 nodes, by fixed work beside them."""
    world = plan.World(256, 500, seed=1)
    fleet = world.fleet()
    before = min(naive() for _ in range(5))
    took = statistics.median(plan.passes(world, fleet, 10)), statistics.median(plan.events(world, fleet, 20))
    peer = min(before, *(naive() for _ in range(5)))
    return {f"plan {name}": Kept(one / peer, LESS, "time") for name, one in zip(("pass", "notice"), took, strict=True)}


def kept_of(name: str, figures: Mapping[str, Any], peer_ms: float, *, timed: bool = False) -> dict[str, Kept]:
    """Returns what of a benchmark's figures is compared: times, memory, and what has to reach something.

    Of one that is `timed`, rates are compared too, and what is neither hangs on the machine.
    """
    found = {}
    for figure, told in figures.items():
        if figure == "notes":
            continue
        unit = str(told["unit"]).replace(",", " ").split(" ")[0]
        better = MORE if str(told["must"]).startswith(">=") else LESS
        if unit in _TIMES and f"{name} {figure}" not in _OF_A_MODEL:
            # The slowest of few rounds says little, and so does the small difference of two times.
            by_chance = "p99" in figure or "over_echo" in figure or f"{name} {figure}" in _BY_CHANCE
            if better == LESS and not by_chance:
                value = told["ratio"] if told["ratio"] is not None else told["value"] / peer_ms
                found[f"{name} {figure}"] = Kept(value, LESS, "time")
        elif unit in ("MB", "MiB", "KiB"):
            found[f"{name} {figure}"] = Kept(told["value"], LESS, "MB")
        elif told["must"] and timed:
            if "rate" in figure:
                found[f"{name} {figure}"] = Kept(told["value"], better, "rate")
        elif told["must"]:
            found[f"{name} {figure}"] = Kept(told["value"], better, "as it is")
    return found


def measured(part: Part) -> tuple[dict[str, Kept], str]:
    """Runs a part; what it found, and a sentence where it left nothing."""
    with tempfile.TemporaryDirectory(prefix="berth-gate-") as folder:
        before = min(naive() for _ in range(5))
        try:
            done = subprocess.run(
                part.command, cwd=ROOT, env={**os.environ, FOLDER_NAME: folder}, timeout=WITHIN, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BrokenPartError(f"{part.name}: did not end within {WITHIN:.0f} s") from None
        peer = min(before, *(naive() for _ in range(5)))
        file = Path(folder) / f"{part.name}.json"
        if file.exists():
            figures = json.loads(file.read_text(encoding="utf-8"))
            return kept_of(part.name, figures, peer, timed=part.timed), ""
        last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
        if done.returncode:
            raise BrokenPartError(f"{part.name}: ended with {done.returncode}: {last}")
        return {}, f"{part.name}: {last}"


def better_of(first: Mapping[str, Kept], second: Mapping[str, Kept]) -> dict[str, Kept]:
    """Returns all figures of both, and the better one of each that is in both."""
    found = dict(first)
    for name, one in second.items():
        if name not in found or found[name].worse_than(one):
            found[name] = one
    return found


def beyond(found: Mapping[str, Kept], baseline: Mapping[str, Kept], parts: Iterable[str]) -> list[str]:
    """Returns a sentence for each figure that is beyond its band, and for one of these parts that is on one side."""
    names = set(parts)
    asked = {name: one for name, one in baseline.items() if name.split(" ")[0] in names}
    told = [f"{name}: is not in both the run and the baseline" for name in sorted(found.keys() ^ asked.keys())]
    return told + [
        f"{name}: {found[name].value:.4f}, and may be {asked[name].limit:.4f} at the worst"
        f" ({asked[name].value:.4f} was kept)"
        for name in sorted(found.keys() & asked.keys())
        if found[name].worse_than(Kept(asked[name].limit, asked[name].better, asked[name].kind))
    ]


def read(path: Path = BASELINE) -> dict[str, Kept]:
    """Returns the kept figures."""
    return {name: Kept(**one) for name, one in json.loads(path.read_text(encoding="utf-8"))["figures"].items()}


def write(found: Mapping[str, Kept], path: Path = BASELINE) -> None:
    """Keeps figures for the next release to be compared with."""
    made = {
        "release": metadata.version("slurm-berth"),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    figures = {name: {**asdict(one), "value": float(f"{one.value:.4g}")} for name, one in sorted(found.items())}
    path.write_text(json.dumps({"made": made, "figures": figures}, indent=1) + "\n", encoding="utf-8")


def rounds(parts: Sequence[Part], *, with_plan: bool) -> tuple[dict[str, Kept], list[str], list[str]]:
    """Runs all parts, and then all once more; the better figures, what could not be measured, and what failed."""
    found: dict[str, Kept] = {}
    left: list[str] = []
    broken: list[str] = []
    for number in range(ROUNDS):
        if with_plan:
            found = better_of(found, planned())
        for part in parts:
            began = time.monotonic()
            try:
                figures, problem = measured(part)
            except BrokenPartError as fault:
                broken.append(str(fault))
                continue
            found = better_of(found, figures)
            left += [problem] if problem and problem not in left else []
            took = time.monotonic() - began
            sys.stdout.write(f"bench-gate: round {number + 1} of {ROUNDS}: {part.name}, {took:.0f} s\n")
            sys.stdout.flush()
    return found, left, broken


def main() -> int:
    """Measures, prints, and compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gate", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--renew", action="store_true", help="keep this run's figures, as at a release")
    parser.add_argument("--without-clusters", action="store_true", help="leave out what needs a Docker engine")
    parser.add_argument("--only", action="append", metavar="PART", help="only this part; may be repeated")
    options = parser.parse_args()
    every = ["plan", *(part.name for part in PARTS)]
    asked = options.only or every
    if unknown := set(asked) - set(every):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    parts = [part for part in PARTS if part.name in asked and not (part.clusters and options.without_clusters)]
    found, left, broken = rounds(parts, with_plan="plan" in asked)
    left += [f"{part.name}: no Docker engine runs here" for part in PARTS if part.name in asked and part not in parts]
    there = sorted({name.split(" ")[0] for name in found})
    if options.renew:
        write({**(read() if options.only else {}), **found})
    baseline = read()
    for name, value in found.items():
        kept = f"{baseline[name].value:.4f}" if name in baseline else "nothing"
        sys.stdout.write(f"bench-gate: {name} {value.value:.4f}, kept {kept}\n")
    told = [*broken, *beyond(found, baseline, there)]
    for line in told:
        sys.stderr.write(f"bench-gate: {line}\n")
    for line in left:
        sys.stderr.write(f"bench-gate: not measured: {line}\n")
    sys.stdout.write(f"bench-gate: {len(found)} figures of {len(there)} parts, {len(told)} beyond their bands\n")
    return 1 if told else NOT_ALL if left else 0


if __name__ == "__main__":
    sys.exit(main())
