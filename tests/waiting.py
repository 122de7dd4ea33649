# SPDX-License-Identifier: Apache-2.0
"""Waiting for an event, with a generous limit: for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SLOWER = 3.0
"""How much slower than the one on which the limits were chosen a machine may be, and find every event in time."""
LONGEST_TURN = 5.0
"""Seconds that one turn counts at most: where it took longer, the machine stood still, and what is awaited with it."""


def until(what: str | Callable[[], str], get: Callable[[], T | None], seconds: float = 60.0, every: float = 0.15) -> T:
    """Poll until `get` gives something; fail with a sentence, which `what` may make when time is up."""
    left = limit = SLOWER * seconds
    while True:
        began = time.monotonic()
        value = get()
        if value:
            return value
        if left <= 0:
            raise AssertionError(f"waited {limit:.0f} s in vain: {what if isinstance(what, str) else what()}")
        time.sleep(every)
        left -= min(time.monotonic() - began, LONGEST_TURN)
