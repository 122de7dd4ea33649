# SPDX-License-Identifier: Apache-2.0
"""The cores of each socket and the GPUs near it, and the cores of a node that Slurm gives a job."""

from collections.abc import Sequence

from topology.model import Machine

Cores = list[tuple[int, ...]]


def sockets_of(machine: Machine | None) -> tuple[int, ...]:
    """Returns the GPUs near each socket of a machine; one socket if the machine has no such data."""
    masks: dict[int, int] = {}
    for gpu in machine.gpus if machine else ():
        masks[gpu.numa] = masks.get(gpu.numa, 0) | 1 << gpu.position
    return tuple(masks[numa] for numa in sorted(masks)) or (0,)


def split(cores: int, sockets: int) -> tuple[int, ...]:
    """Spreads cores evenly over sockets.

    >>> split(16, 2), split(5, 2)
    ((8, 8), (3, 2))
    """
    return tuple((cores + sockets - 1 - number) // sockets for number in range(sockets))


def pick_cores(free: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Picks cores as Slurm does, from the socket with most free cores first.

    >>> pick_cores((5, 8), 4), pick_cores((5, 8), 10)
    ((0, 4), (2, 8))
    """
    taken = [0] * len(free)
    for socket in sorted(range(len(free)), key=lambda socket: (-free[socket], socket)):
        taken[socket] = min(wanted, free[socket])
        wanted -= taken[socket]
    return tuple(taken)
