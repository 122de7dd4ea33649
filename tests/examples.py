# SPDX-License-Identifier: Apache-2.0
"""How much a run tries: few examples in `make test-fast`, samples in `make test`, all in `make test-hard`."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
FACTOR = float(os.environ.get("BERTH_EXAMPLES", "1"))
BELOW = 10**9


def drawn_seed() -> int:
    """Returns a number that is the same in each run of one commit: what failed fails again, and what passed passes.

    Each commit draws other examples. `make test-hard`, and a tree without git, draw afresh.
    """
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD^{tree}"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
        return int(told, 16) % BELOW
    except (OSError, subprocess.CalledProcessError, ValueError):
        return secrets.randbelow(BELOW)


#: Told at the head of a run, and the same in all of its processes.
SEED = int(os.environ.get("BERTH_SEED") or drawn_seed())
os.environ["BERTH_SEED"] = str(SEED)


def examples(count: int) -> int:
    """What `make test` draws, times BERTH_EXAMPLES."""
    return max(1, round(count * FACTOR))


def sample_or_all(count: int) -> pytest.MarkDecorator:
    """Runs a test with a sample of a sweep's cases, whose `count` it is given, and in `make test-hard` with all."""
    return pytest.mark.parametrize("count", [count, pytest.param(None, id="all", marks=pytest.mark.hard)])


def sampled(cases: Iterable[T], count: int | None) -> list[T]:
    """Returns so many of the cases by this run's seed, in their order; all where there is no count."""
    every = list(cases)
    if count is None or count >= len(every):
        return every
    return [every[at] for at in sorted(random.Random(SEED).sample(range(len(every)), count))]


def seeds(count: int, more: int) -> pytest.MarkDecorator:
    """Runs a test with the first seeds, and in `make test-hard` with more, which draw larger worlds."""
    larger = [pytest.param(seed, marks=pytest.mark.hard) for seed in range(count, count + more)]
    return pytest.mark.parametrize("seed", [*range(count), *larger])
