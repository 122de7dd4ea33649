# SPDX-License-Identifier: Apache-2.0
"""Places all jobs of one pass together: packs them first, then makes exchanges that lower the total cost.

The cost is the sum of predicted over ideal times. Three exchanges lower it until none helps. The berths of jobs of
equal width are assigned anew (an exact min-cost assignment). The contents of two nodes are swapped. Two single GPUs are
swapped. A running job's move counts as a cost, so the job stays unless the move pays.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tests.bench.paper.joint.board import IMPOSSIBLE, NONE, Board
from tests.bench.paper.joint.seating import seat

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.formats.arrays import Floats
    from policy.placement.base import Berth
    from policy.request.demand import Demand
    from topology.sets.tables import Ints

    Berths = Sequence[Berth | None]

_WORTH = 1e-9
_SWEEPS = 4
"""Most sweeps over the exchanges; the first two bring nearly all of the gain."""

_WORTH_A_SWEEP = 2e-4
"""Part of the sum of costs that a sweep must save for another one to follow."""

_WORTH_THE_SEARCH = 1.005
"""Factor by which a job must become faster for several of its slow GPUs to be swapped at once."""

_THRESHOLDS = 3
"""Number of a job's greatest scores that are tried as the bound from which on a GPU is slow."""

STAY = 1e-4
"""Least gain of a move, even where moving costs nothing: equal berths are not worth a restart."""


def place_together(
    demands: "Sequence[Demand]", view: "View", held: "Berths", move_s: float, at_worst: "Berths"
) -> "list[dict[int, int] | None]":
    """Returns for each job its GPUs as masks by node, None for a job that does not fit beside those before it.

    The search starts once from where the jobs run and once from a packing; the better result counts. It can end where
    no exchange helps. If `at_worst` is still better than the result, the search starts again from there.
    """
    moving = [STAY + move_s / max(demand.remaining, 1.0) for demand in demands]
    nobody: Berths = [None] * len(demands)
    boards = []
    for start in (held, nobody) if any(held) else (nobody,):
        board = Board(view, demands, moving)
        _settle(board, demands, held, start)
        improve(board)
        boards.append(board)
    best = min(boards, key=_worth)
    _polish(best)
    board = Board(view, demands, moving)
    _settle(board, demands, held, at_worst)
    if _worth(board) < _worth(best):
        best = board
        improve(best)
        _polish(best)
    return [_masks(best, job) for job in range(len(demands))]


def _worth(board: Board) -> tuple[int, float]:
    """Returns the sort key of a board, less is better: jobs without a berth, then the sum of costs."""
    return sum(not slots.size for slots in board.slots), board.total()


def _polish(board: Board) -> None:
    """Runs the slowest search, which swaps several slow GPUs of a job at once; for the best board only."""
    jobs = board.seated()
    for _ in range(_SWEEPS):
        before = board.total()
        _hand_slow_gpus_over(board, jobs)
        if board.total() > before * (1 - _WORTH_A_SWEEP):
            break
        improve(board, sweeps=1)


def _settle(board: Board, demands: "Sequence[Demand]", held: "Berths", start: "Berths") -> None:
    """Gives each job a first berth: the one where the search starts, else one by packing."""
    for job, (runs_on, first) in enumerate(zip(held, start, strict=True)):
        if runs_on:
            home = _slots_of(board, runs_on)
            board.home[job] = np.zeros(0, np.int64) if home is None else home
        slots = _slots_of(board, first) if first else None
        if slots is not None and (board.owner[slots] == NONE).all():
            board.give(job, slots)
    seat(board, demands, [job for job in range(len(demands)) if not board.slots[job].size])


def _slots_of(board: Board, berth: "Berth") -> "Ints | None":
    """Returns the slots of a berth, None where some of its GPUs are no longer there."""
    rows = np.searchsorted(board.nodes, berth.nodes)
    if (rows >= board.nodes.size).any() or (board.nodes[rows] != berth.nodes).any():
        return None
    bits = (np.array(berth.masks)[:, None] >> np.arange(board.width)) & 1
    which, positions = np.nonzero(bits)
    slots = board.slot_at[rows[which], positions]
    return None if (slots == NONE).any() else np.sort(slots)


def improve(board: Board, sweeps: int = _SWEEPS) -> None:
    """Makes exchanges until none helps, for at most `sweeps` sweeps."""
    jobs = board.seated()
    for _ in range(sweeps):
        before = board.total()
        _assign_equal_widths(board, jobs)
        _swap_nodes(board)
        _swap_gpus(board, jobs)
        if board.total() > before * (1 - _WORTH_A_SWEEP):
            break


def _assign_equal_widths(board: Board, jobs: list[int]) -> None:
    """Assigns the berths of jobs of equal width anew at the least cost; for single GPUs, free ones are offered too."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import, and needed here only

    widths: dict[int, list[int]] = {}
    for job in jobs:
        widths.setdefault(int(board.gpus[job]), []).append(job)
    for width, group in widths.items():
        offers = np.stack([board.slots[job] for job in group])
        if width == 1:
            free = np.flatnonzero(board.owner == NONE)
            offers = np.concatenate([offers, free[:, None]])
        if len(offers) < 2:
            continue
        costs = _costs(board, group, offers)
        rows, columns = linear_sum_assignment(costs)
        if costs[rows, columns].sum() < board.cost[group].sum() - _WORTH:
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
                board.give(group[row], offers[column])


def _costs(board: Board, group: list[int], offers: "Ints") -> "Floats":
    """Returns the cost of each job of a group on each offered set of slots."""
    level = board.levels(offers)
    slowest = board.scores[:, offers].max(axis=2)
    costs: Floats = slowest[board.kind[group]] * board.factor[np.array(group)[:, None], level[None, :]]
    for row, job in enumerate(group):
        home = board.home[job]
        if home is not None:
            at_home = (offers == home).all(axis=1) if home.size == offers.shape[1] else np.zeros(len(offers), np.bool_)
            costs[row] += np.where(at_home, 0.0, board.moving[job])
    return costs


def _swap_nodes(board: Board) -> None:
    """Swaps the contents of two nodes of which all GPUs are slots."""
    whole = np.flatnonzero((board.slot_at != NONE).all(axis=1))
    for row in whole.tolist():
        here = board.slot_at[row]
        # A useful swap improves at least one job. It is found when the loop reaches a node of that job.
        if not any(board.could_gain(job) for job in set(board.owner[here].tolist()) - {NONE}):
            continue
        change = board.gain_of_node_swaps(row, whole)
        for choice in np.argsort(change)[:3].tolist():
            if change[choice] >= -_WORTH:
                break
            if _try_node_swap(board, here, board.slot_at[whole[choice]]):
                break


def _try_node_swap(board: Board, here: "Ints", there: "Ints") -> bool:
    to = dict(zip(here.tolist(), there.tolist(), strict=True)) | dict(zip(there.tolist(), here.tolist(), strict=True))
    owners = sorted({*board.owner[here].tolist(), *board.owner[there].tolist()} - {NONE})
    new = [np.array(sorted(to.get(slot, slot) for slot in board.slots[job].tolist())) for job in owners]
    change = sum(board.price(job, slots) for job, slots in zip(owners, new, strict=True)) - board.cost[owners].sum()
    if change >= -_WORTH:
        return False
    for job, slots in zip(owners, new, strict=True):
        board.give(job, slots)
    return True


def _swap_gpus(board: Board, jobs: list[int]) -> None:
    """Swaps single GPUs, beginning with the jobs of the highest cost."""
    for job in sorted(filter(board.could_gain, jobs), key=lambda job: -board.cost[job]):
        for slot in board.worst_slots(job):
            if board.owner[slot] != job:
                continue
            change = board.gain_of_swaps(slot)
            other = int(change.argmin())
            if change[other] < -_WORTH:
                before = board.total()
                first, second = job, int(board.owner[other])
                old = board.slots[first], None if second == NONE else board.slots[second]
                board.swap_slots(slot, other)
                # The estimate always counts a move, but a swap can also bring a job home; the exact sum decides.
                if board.total() >= before - _WORTH:
                    board.give(first, old[0])
                    if old[1] is not None:
                        board.give(second, old[1])


def _hand_slow_gpus_over(board: Board, jobs: list[int]) -> None:
    """Swaps all slow GPUs of a job at once for fast ones, free or of another job; one alone gains nothing."""
    for job in sorted(filter(board.could_gain, jobs), key=lambda job: -board.cost[job]):
        mine = board.scores[board.kind[job], board.slots[job]]
        enough = mine.max() / _WORTH_THE_SEARCH
        for threshold in np.unique(mine)[: -_THRESHOLDS - 1 : -1].tolist():
            slow = mine >= threshold
            if slow.all() or mine[~slow].max() > enough:
                continue
            if _swap_with_best_partner(board, jobs, job, board.slots[job][slow], enough):
                break


def _swap_with_best_partner(board: Board, jobs: list[int], job: int, slow: "Ints", enough: float) -> bool:
    scores = board.scores[board.kind[job]]
    kept = np.setdiff1d(board.slots[job], slow)
    best, swap = -_WORTH, None
    free = np.flatnonzero(board.owner == NONE)
    if free.size >= slow.size:
        fast = free[np.argsort(scores[free], kind="stable")[: slow.size]]
        new = np.sort(np.concatenate([kept, fast]))
        change = board.price(job, new) - board.cost[job]
        if change < best:
            best, swap = change, (NONE, new, fast)
    # A bound that holds if both keep their level: most partners would lose more than the job can gain, and are skipped.
    stretch = board.cost / np.maximum(board.slowest(), _WORTH)
    losses = np.maximum(board.scores[board.kind][:, slow].max(axis=1) * stretch - board.cost, 0.0)
    most = board.cost[job] - scores[kept].max() * stretch[job]
    for other in jobs:
        theirs = board.slots[other]
        if other == job or theirs.size < slow.size or losses[other] >= most:
            continue
        order = np.argsort(scores[theirs], kind="stable")
        fast = theirs[order[: slow.size]]
        if scores[fast[-1]] > enough or losses[other] >= board.cost[job] - scores[fast[-1]] * stretch[job]:
            continue
        new = np.sort(np.concatenate([kept, fast]))
        new_other = np.sort(np.concatenate([theirs[order[slow.size :]], slow]))
        change = board.price(job, new) + board.price(other, new_other) - board.cost[job] - board.cost[other]
        if change < best:
            best, swap = change, (other, new, new_other)
    if swap is None:
        return False
    other, new, new_other = swap
    board.give(job, new)
    if other != NONE:
        board.give(other, new_other)
    return True


def _masks(board: Board, job: int) -> dict[int, int] | None:
    slots = board.slots[job]
    if not slots.size or board.cost[job] >= IMPOSSIBLE:
        return None
    masks: dict[int, int] = {}
    nodes, positions = board.nodes[board.row[slots]].tolist(), board.position[slots].tolist()
    for node, position in zip(nodes, positions, strict=True):
        masks[node] = masks.get(node, 0) | 1 << position
    return masks
