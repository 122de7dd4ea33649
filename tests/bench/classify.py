# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.classify`: the failure classes of logs from programs that were really run to failure.

tests/fixtures/failures/make.py made the logs. Rules were mended with those of all parts but `fresh`, which no rule has
seen. Macro-F1 is the mean over the classes that the programs of a part fail of.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import process_time

from policy.retry.classes import CLASSES, NO_SIGNATURE
from policy.retry.classify import TAIL_BYTES, Classification, Facts, classify
from policy.retry.rules import Rules, read_rules
from tests.bench.table import Figure, at_least, at_most, report

ROOT = Path(__file__).resolve().parents[2]
FAILURES = ROOT / "tests" / "fixtures" / "failures"
RULES = ROOT / "policy" / "retry" / "rules.toml"
NEAR = 16_384
"""Bytes of a log that another stands beside."""
PARTS = ("seen", "held-out", "later", "fresh")


@dataclass(frozen=True, slots=True)
class Log:
    """A program that failed."""

    label: str
    program: str
    part: str
    failure: str
    transient: bool
    """Another try may help: `yes` in the manifest, else as the class says, but for `never`."""
    exit_code: int
    tail: bytes


def logs() -> list[Log]:
    """All of them."""
    with (FAILURES / "manifest.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        Log(
            label := f"{row['program']}-{row['name']}",
            row["program"],
            row["part"],
            row["class"],
            row["transient"] == "yes" or (row["transient"] == "no" and CLASSES[row["class"]].transient),
            int(row["exit_code"]),
            (FAILURES / "logs" / f"{label}.log").read_bytes(),
        )
        for row in rows
    ]


def shipped_rules() -> Rules:
    """Those of policy/retry/rules.toml."""
    return read_rules(RULES.read_text(encoding="utf-8"), RULES.name)


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """The mean F1 of all classes that are true of some; pairs are (true, found)."""
    right = Counter(true for true, found in pairs if true == found)
    trues = Counter(true for true, _ in pairs)
    founds = Counter(found for _, found in pairs)
    return fmean(2 * right[name] / (trues[name] + founds[name]) for name in trues)


def found(log: Log, rules: Rules) -> Classification:
    """What the rules say of a log, with the exit code but no other fact."""
    return classify(log.tail, Facts(exit_code=log.exit_code), rules)


def slowest_ms(rules: Rules) -> float:
    """Processor time for 256 KiB of the worst of some kinds of log, the median of five runs each."""
    draw = random.Random(0)
    kinds = {
        "progress": b"".join(b"step %d: loss %.4f, 812 img/s\r" % (step, draw.random()) for step in range(9_000)),
        "binary": draw.randbytes(TAIL_BYTES),
        "long line": b"error: expected " + b"a" * TAIL_BYTES,
        "many errors": b"RuntimeError: CUDA error in cudaMalloc: Connection failed, loss is large\n" * 4_000,
        "logs": b"".join(log.tail for log in logs())[-TAIL_BYTES:],
    }

    def once(tail: bytes) -> float:
        began = process_time()
        classify(tail, Facts(exit_code=1), rules)
        return 1e3 * (process_time() - began)

    return max(median(once(tail) for _ in range(5)) for tail in kinds.values())


def retried_beside(rules: Rules, *, first: bool) -> float:
    """The share of Python's program faults that are tried again where another rank tells a passing trouble beside."""
    faults = [log.tail for log in logs() if not log.transient and b"Traceback (most recent call last)" in log.tail]
    troubles = [log.tail for log in logs() if log.transient]
    pairs = [(fault, trouble) if first else (trouble, fault) for fault in faults for trouble in troubles]
    tails = [b"\n".join(pair) for pair in pairs if max(map(len, pair)) < NEAR]
    return fmean(classify(tail, Facts(exit_code=1), rules).transient for tail in tails)


def main() -> None:
    """Measure, and show what was taken for something else."""
    parser = argparse.ArgumentParser(description="Failure classes of really failed programs.")
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="whose mistakes to show")
    part = parser.parse_args().part
    rules, figures = shipped_rules(), []
    for shown in PARTS:
        name = shown.replace("-", "_")
        some = [(log, found(log, rules)) for log in logs() if log.part == shown]
        pairs = [(log.failure, one.failure) for log, one in some]
        unknown = sum(b == NO_SIGNATURE != a for a, b in pairs) / len(pairs)
        right = sum(a == b for a, b in pairs) / len(pairs)
        retry = sum(log.transient == one.transient for log, one in some) / len(some)
        figures += [
            Figure(f"{name}_logs", len(some), ""),
            Figure(f"{name}_accuracy", right, ""),
            Figure(f"{name}_retry_right", retry, ""),
            at_least(f"{name}_macro_f1", macro_f1(pairs), 0.9, ""),
            at_most(f"{name}_unclassified", unknown, 0.05, ""),
        ]
        for log, one in some:
            if log.failure != one.failure and part in {"all", shown}:
                print(f"{log.label}: {log.failure}, taken for {one.failure}: {one.reason[:90]}")
    unit = "of program faults in Python, beside each passing trouble"
    figures.append(Figure("retried_before_trouble", retried_beside(rules, first=True), f"{unit} after them"))
    figures.append(Figure("retried_after_trouble", retried_beside(rules, first=False), f"{unit} before them"))
    figures.append(at_most("slowest_256_kib_ms", slowest_ms(rules), 50, "ms of processor time"))
    patterns = sum(len(rule.patterns) for rule in rules)
    report("classify", "Failure classes", figures, {"rules": f"{patterns} patterns"})


if __name__ == "__main__":
    main()
