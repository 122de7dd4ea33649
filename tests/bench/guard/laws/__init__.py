# SPDX-License-Identifier: Apache-2.0
"""Published control laws that `make bench NAME=guard` compares the guard's own with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prolog_epilog.guard.decide.law import Law

from .antman import Antman, AntmanSettings
from .pi import PiSettings, ProportionalIntegral
from .tgs import Tgs, TgsSettings

PEERS: Mapping[str, Callable[[], Law]] = {
    "TGS": lambda: Tgs(TgsSettings()),
    "AntMan's duty cycle": lambda: Antman(AntmanSettings()),
    "PI": lambda: ProportionalIntegral(PiSettings()),
}
"""Each law by its name in the table."""
