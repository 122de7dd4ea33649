# SPDX-License-Identifier: Apache-2.0
"""The timeline of one node: a few states in order, each with what is free from its moment on; the last one stays."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter

from policy.cluster.snapshot import COLUMNS, Cluster
from policy.formats.arrays import FAR

State = tuple[float, int, int, int]
"""A moment, and the GPUs, CPUs and memory that are free from then on."""


def states_of(cluster: Cluster, node: int) -> list[State]:
    """Returns a node's timeline without the repeated last moment that fills it up."""
    times = cluster.times[node].tolist()
    length = bisect_left(times, times[-1]) + 1
    return list(
        zip(
            times[:length],
            cluster.gpus[node, :length].tolist(),
            cluster.cpus[node, :length].tolist(),
            cluster.mem[node, :length].tolist(),
            strict=True,
        )
    )


def taken(row: Sequence[State], start: float, end: float, mask: int, cpus: int, mem: int) -> list[State]:
    """Returns a timeline after GPUs, CPUs and memory are taken for a time; `row` is as `normal` leaves it.

    >>> taken([(0.0, 0b11, 8, 100)], 5.0, 9.0, 0b01, 2, 30)
    [(0.0, 2, 6, 70), (9.0, 3, 8, 100)]
    """
    # What is free from a moment on is limited by the tightest later moment, which is the claim's start.
    at_start = row[0]
    for state in row:
        if state[0] > start:
            break
        at_start = state
    ceiling_cpus, ceiling_mem = max(0, at_start[2] - cpus), max(0, at_start[3] - mem)
    others, at_end, is_over = ~mask, row[0], False
    states: list[State] = []
    last: tuple[int, int, int] | None = None
    # Each waiting job claims its place in each pass: most states are compared, without a call.
    for state in row:
        time, gpus, free_cpus, free_mem = state
        if time >= end:
            if not is_over:
                is_over = True
                if time > end and last != (last := at_end[1:]):
                    states.append((end, *at_end[1:]))
        else:
            at_end = state
            gpus &= others
            if time <= start:
                free_cpus, free_mem = min(free_cpus, ceiling_cpus), min(free_mem, ceiling_mem)
            else:
                free_cpus = free_cpus - cpus if free_cpus > cpus else 0
                free_mem = free_mem - mem if free_mem > mem else 0
        if last != (last := (gpus, free_cpus, free_mem)):
            states.append((time, gpus, free_cpus, free_mem))
    if not is_over and end < FAR and last != at_end[1:]:
        states.append((end, *at_end[1:]))
    return _shortened(states)


def normal(states: Iterable[State]) -> list[State]:
    """Returns a timeline from states in any order, with at most `COLUMNS` of them."""
    return _merged(sorted(states, key=_moment))


def _merged(states: Iterable[State]) -> list[State]:
    kept: list[State] = []
    last: State | None = None
    for state in states:
        if last is not None and last[0] == state[0]:
            # The same moment twice: the later entry includes what the claim gives back.
            kept[-1] = last = state
        elif last is None or last[1:] != state[1:]:
            kept.append(state)
            last = state
    return _shortened(kept)


def _shortened(kept: list[State]) -> list[State]:
    # To leave a moment out only makes estimates later. The last state must stay, or the node would never be free.
    while len(kept) > COLUMNS:
        del kept[-2]
    return kept


def columns(row: list[State]) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the columns of a timeline of fixed length; `row` is as `normal` leaves it."""
    times, gpus, cpus, mem = zip(*row, *[row[-1]] * (COLUMNS - len(row)), strict=True)
    return times, gpus, cpus, mem


_moment = itemgetter(0)
