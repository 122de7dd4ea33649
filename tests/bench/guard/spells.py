# SPDX-License-Identifier: Apache-2.0
"""Which steps of a training are late beside a guest: those that meet a spell of the guest's gate.

At duty p the gate lets a guest work for a spell, and naps 1/p - 1 times as long (prolog_epilog/injob/c/gate.c). Here
both run at the speeds that one H200 showed under MPS, and nothing else happens: no probe, no freezing.

    python -m tests.bench.guard.spells

>>> round(pair(0.5, 20.0, random.Random(1)).p99, 2)
0.94
"""

from __future__ import annotations

import random
from statistics import mean, median
from typing import NamedTuple

STEP_MS, SLOWER, GUEST = 7.10, 1.94, 0.52
"""A step alone; its time under MPS over that; the guest's speed meanwhile (docs/results/gpu.md, *Owner and guest*)."""
JUDGED_MS = 7_500.0
SPELLS_MS = (5.0, 20.0, 200.0)
DUTIES = (0.006, 0.01, 0.013, 0.02, 0.05)
DRAWS = 200


class Pair(NamedTuple):
    """How much later steps are than alone, and what the guest gets of a GPU of its own."""

    median: float
    p99: float
    guest: float


def pair(duty: float, spell: float, draw: random.Random) -> Pair:
    """Plays the judged seconds, from a drawn moment of the gate's rhythm on."""
    round_ms = spell / duty
    now, into, steps = 0.0, draw.random() * round_ms, []
    while now < JUDGED_MS:
        began, left = now, STEP_MS
        while left > 1e-9:
            slower, until = (SLOWER, spell) if into < spell else (1.0, round_ms)
            spent = min(left * slower, until - into)
            left, now, into = left - spent / slower, now + spent, (into + spent) % round_ms
        steps.append((now - began) / STEP_MS - 1.0)
    return Pair(median(steps), sorted(steps)[int(len(steps) * 0.99)], duty * GUEST)


def main() -> None:
    """Prints the table."""
    print("spell  duty  guest  median  p99 (10th to 90th percentile of 200 draws)")
    for spell in SPELLS_MS:
        for duty in DUTIES:
            found = [pair(duty, spell, random.Random(number)) for number in range(DRAWS)]
            late = sorted(one.p99 for one in found)
            low, high = late[DRAWS // 10], late[-DRAWS // 10]
            print(
                f"{spell:3.0f} ms  {duty:.1%}  {found[0].guest:.1%}  {mean(one.median for one in found):.1%}"
                f"  {mean(late):.0%} ({low:.0%} to {high:.0%})"
            )


if __name__ == "__main__":
    main()
