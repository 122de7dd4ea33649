# SPDX-License-Identifier: Apache-2.0
"""Events that change a simulated cluster while jobs run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A time in which a node is slower: all true scores of its GPUs are multiplied by a factor.

    It is in force in each round that begins between `start` and `end`, which are in seconds.
    """

    node: int
    start: float
    end: float
    factor: float
