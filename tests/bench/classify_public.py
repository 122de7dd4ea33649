# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.classify_public`: the failure classes of logs in public issues, where BERTH_DATA has them.

`failures/logs` has one file for each log, as far as its thread shows the end of it. `failures/read.csv` and
`failures/held-out.csv` have the labels, written before any rules ran on the logs: the class, and in `passes` `yes` or
`no` where another try of that very trouble is worth more or less than the class says. Rules are mended with the first
file alone. New logs, of projects that are not in it, are looked for after the rules were frozen, and stand in the
second until the rules were shown them once; then they join the first.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from policy.retry.classes import CLASSES
from policy.retry.classify import Classification, Facts, classify
from policy.retry.rules import Rules, read_rules
from tests.bench.classify import ROOT, RULES
from tests.bench.table import Figure, at_least, at_most, report

DATA = Path(os.environ.get("BERTH_DATA", ROOT.parent / "shared" / "data")) / "failures"
PARTS = ("read", "held-out")
_Z = 1.959964
"""Standard deviations of a two-sided interval of 95 %."""


@dataclass(frozen=True, slots=True)
class PublicLog:
    """A log of a public thread, its label, and what the rules say of it."""

    source: str
    failure: str
    passes: bool
    """Another try of the same job may well succeed."""
    found: Classification

    @property
    def project(self) -> str:
        """Returns the repository of the thread."""
        return self.source.partition("#")[0].lower()

    @property
    def right(self) -> bool:
        """Tells whether the rules find the class."""
        return self.found.failure == self.failure


def public_logs(part: str, rules: Rules) -> list[PublicLog]:
    """Returns the logs of a part, each as the rules take it, without an exit code."""
    with (DATA / f"{part}.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        PublicLog(
            row["source"],
            row["class"],
            CLASSES[row["class"]].transient if not row["passes"] else row["passes"] == "yes",
            classify((DATA / "logs" / row["log"]).read_bytes(), Facts(), rules),
        )
        for row in rows
    ]


def wilson(right: int, of: int) -> tuple[float, float]:
    """Returns Wilson's interval of 95 % for a share.

    >>> [round(bound, 3) for bound in wilson(47, 57)]
    [0.706, 0.902]
    """
    share, spread = right / of, _Z**2 / of
    middle = share + spread / 2
    reach = _Z * sqrt(share * (1 - share) / of + spread / (4 * of))
    return (middle - reach) / (1 + spread), (middle + reach) / (1 + spread)


def figures_of(part: str, logs: Iterable[PublicLog]) -> list[Figure]:
    """Returns what a part shows; bounds only for logs that no rule was mended with."""
    logs, name = list(logs), part.replace("-", "_")
    right = sum(one.right for one in logs)
    low, high = wilson(right, len(logs))
    passing = [one for one in logs if one.passes]
    retried = sum(one.found.transient for one in passing) / len(passing)
    in_vain = sum(one.found.transient for one in logs if not one.passes)
    figures = [
        Figure(f"{name}_logs", len(logs), ""),
        Figure(f"{name}_projects", len({one.project for one in logs}), ""),
        Figure(f"{name}_passing", len(passing), "logs"),
        Figure(f"{name}_accuracy_high", high, "upper limit"),
    ]
    if part == "read":
        return [
            *figures,
            Figure(f"{name}_accuracy", right / len(logs), ""),
            Figure(f"{name}_accuracy_low", low, "lower limit"),
            Figure(f"{name}_passing_retried", retried, ""),
            Figure(f"{name}_faults_retried", in_vain, "logs"),
        ]
    return [
        *figures,
        at_least(f"{name}_accuracy", right / len(logs), 0.93, ""),
        at_least(f"{name}_accuracy_low", low, 0.88, "lower limit"),
        at_least(f"{name}_passing_retried", retried, 0.85, ""),
        at_most(f"{name}_faults_retried", in_vain, 0, "logs"),
    ]


def main() -> None:
    """Measures, and shows the mistakes of one part where it is named."""
    parser = argparse.ArgumentParser(description="Failure classes of logs in public issues.")
    parser.add_argument("--mistakes", choices=PARTS, help="the part whose mistakes to show")
    parser.add_argument("--rules", type=Path, default=RULES, help="another file of rules")
    words = parser.parse_args()
    there = [part for part in PARTS if (DATA / f"{part}.csv").is_file()]
    if not there:
        sys.stderr.write(f"left out: {DATA} is not there; BERTH_DATA names the folder of failures/\n")
        return
    rules, figures = read_rules(words.rules.read_text(encoding="utf-8"), words.rules.name), []
    for part in there:
        logs = public_logs(part, rules)
        figures += figures_of(part, logs)
        for one in logs if part == words.mistakes else ():
            if not one.right or one.passes != one.found.transient:
                said = f"{one.found.failure}, {'retried' if one.found.transient else 'ended'}"
                wanted = f"{one.failure}, {'passes' if one.passes else 'stays'}"
                print(f"{one.source}: {wanted}; taken for {said}: {one.found.reason[:100]}")
    report("classify-public", "Failure classes of public logs", figures, {"rules": words.rules.name})


if __name__ == "__main__":
    main()
