# SPDX-License-Identifier: Apache-2.0
"""Packs jobs into first berths: wide jobs on whole nodes of one leaf, small ones on the nodes that they fill best."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tests.bench.paper.joint.board import IMPOSSIBLE, NONE, Board

if TYPE_CHECKING:
    from policy.formats.arrays import Bools, Floats
    from policy.request.demand import Demand
    from topology.sets.tables import Ints


def seat(board: Board, demands: "Sequence[Demand]", jobs: Sequence[int]) -> None:
    """Gives berths to jobs without one, as many as fit in the queue's order.

    Wide jobs take whole nodes first. Then small jobs fill nodes, the largest first. The remaining GPUs of wide jobs
    come last, because these jobs are spread anyway.
    """
    seats = _Seats(board)
    one_node = {job for job in jobs if demands[job].n == 1}
    left = int(seats.free.sum())
    admitted = []
    for job in jobs:
        if board.gpus[job] <= left:
            admitted.append(job)
            left -= int(board.gpus[job])
    admitted.sort(key=lambda job: -board.gpus[job])
    wide = [job for job in admitted if job not in one_node and not seats.take_from_one_node(job, look_only=True)]
    for job in wide:
        seats.take_in_turn(job, whole_nodes=True)
    for job in admitted:
        if job not in wide and not seats.take_from_one_node(job) and job not in one_node:
            wide.append(job)
    for job in wide:
        seats.take_in_turn(job)
    for job in admitted:
        slots = seats.of(job)
        if slots.size == board.gpus[job]:
            board.give(job, slots)


class _Seats:
    """Slots that are reserved for jobs, but not given on the board yet."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.free = board.owner == NONE
        self._taken: dict[int, list[Ints]] = {}

    def of(self, job: int) -> "Ints":
        """Returns the slots that are reserved for a job, ascending."""
        return np.sort(np.concatenate(self._taken.get(job, [np.zeros(0, np.int64)])))

    def take_from_one_node(self, job: int, *, look_only: bool = False) -> bool:
        """Reserves all of a job's GPUs on the node with the fewest GPUs left over; ties go to the fastest node."""
        width, free, room, slowest = self._look(job)
        fits = np.flatnonzero(room >= width)
        if fits.size and not look_only:
            node = int(fits[np.lexsort((slowest[fits], room[fits]))[0]])
            self._take(job, node, width, free)
        return bool(fits.size)

    def take_in_turn(self, job: int, *, whole_nodes: bool = False) -> None:
        """Reserves the GPUs that a job still lacks, node by node and as near together as possible."""
        lacks = int(self._board.gpus[job]) - self.of(job).size
        _, free, room, slowest = self._look(job)
        for node in _nodes_in_turn(self._board, lacks, room, slowest, self.of(job)) if lacks else ():
            if whole_nodes and not lacks >= room[node] == self._board.width:
                continue
            lacks -= self._take(job, node, lacks, free)
            if not lacks:
                break

    def _look(self, job: int) -> "tuple[int, Bools, Ints, Floats]":
        board = self._board
        scores = board.scores[board.kind[job]]
        free = self.free & (scores < IMPOSSIBLE)
        slowest = np.full(board.nodes.size, -np.inf)
        np.maximum.at(slowest, board.row[free], scores[free])
        return int(board.gpus[job]), free, np.bincount(board.row[free], minlength=board.nodes.size), slowest

    def _take(self, job: int, node: int, most: int, free: "Bools") -> int:
        board = self._board
        here = np.flatnonzero(free & (board.row == node))
        here = here[np.argsort(board.scores[board.kind[job], here], kind="stable")[:most]]
        self.free[here] = False
        self._taken.setdefault(job, []).append(here)
        return here.size


def _nodes_in_turn(board: Board, width: int, room: "Ints", slowest: "Floats", taken: "Ints") -> list[int]:
    """Returns the nodes in the order in which a wide job takes them.

    They are those of the fullest leaf that can hold the job, else of such a pod, else all. A job that has slots already
    stays in their leaf and pod, if these have room.
    """
    rows = np.flatnonzero(room)
    if not rows.size:
        return []
    first = board.slot_at.max(axis=1)[rows]
    leaf, pod = board.leaf[first], board.pod[first]
    groups = (leaf, pod, np.zeros(rows.size, np.int64))
    for group in groups:
        names, inverse = np.unique(group, return_inverse=True)
        total = np.bincount(inverse, weights=room[rows], minlength=names.size)
        able = np.flatnonzero(total >= width)
        if taken.size and group is not groups[2]:
            able = able[names[able] == (board.leaf if group is leaf else board.pod)[taken[0]]]
        if able.size:
            chosen = able[np.argmin(total[able])]
            inside = rows[inverse == chosen]
            break
    else:
        inside = rows
    # Whole nodes come first, then leaves with more room, then faster leaves; within a leaf, faster nodes.
    mine = board.leaf[board.slot_at.max(axis=1)[inside]]
    _, where = np.unique(mine, return_inverse=True)
    of_leaf = np.bincount(where, weights=room[inside])[where]
    pace = (np.bincount(where, weights=slowest[inside]) / np.bincount(where))[where]
    order: list[int] = inside[np.lexsort((slowest[inside], where, pace, -of_leaf, -room[inside]))].tolist()
    return order
