# SPDX-License-Identifier: Apache-2.0
"""Asks requests of two clusters: several at once, and alone those in whose way others may have stood."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .outcome import Outcome, Request, outcome_of

if TYPE_CHECKING:
    from tests.slurm.target import Target

Two = tuple[Outcome, Outcome]

USERS = ("alice", "bob", "carol", "dave")
"""Each asks one request at a time: where one fails, what is left of its user's jobs is cancelled."""
_FINAL = re.compile(r"configuration is not available|[Ii]nvalid|not supported|More processors requested than permitted")
"""Slurm refuses a request in these words whoever else runs."""


def both(
    targets: Sequence[Target], request: Request, *, folder: str, user: str = USERS[0], seconds: int = 40
) -> tuple[Outcome, Outcome]:
    """Run a request on both clusters at the same time."""
    run = partial(outcome_of, request=request, folder=folder, user=user, seconds=seconds)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(run, targets)
    return one, other


def all_of(
    targets: Sequence[Target],
    requests: Iterable[Request],
    differs: Callable[[Request, Outcome, Outcome], object],
    *,
    folder: str,
    seconds: int = 40,
) -> dict[Request, Two]:
    """Return what became of each request.

    Beside others Slurm may lay a job otherwise, or let it wait too long. So a request that differs, or fails in words
    that are not final, is asked again alone, and once more if it differs still: what Slurm itself does otherwise each
    time tells nothing.
    """
    every = list(dict.fromkeys(requests))
    free: SimpleQueue[str] = SimpleQueue()
    for user in USERS:
        free.put(user)

    def among_others(request: Request) -> Two:
        user = free.get()
        try:
            return both(targets, request, folder=folder, user=user, seconds=seconds)
        finally:
            free.put(user)

    with ThreadPoolExecutor(len(USERS)) as pool:
        found = dict(zip(every, pool.map(among_others, every), strict=True))
    for request in every:
        for _ in range(2):
            two = found[request]
            if not differs(request, *two) and all(one.rc == 0 or _FINAL.search(one.said) for one in two):
                break
            found[request] = both(targets, request, folder=folder, seconds=seconds)
            if not differs(request, *found[request]):
                break
    return found
