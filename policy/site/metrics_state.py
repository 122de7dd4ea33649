# SPDX-License-Identifier: Apache-2.0
"""The part of the state file that the metrics are made from (docs/develop/formats.md, 11.7).

It holds numbers and names of nodes only, columns in node order. Job numbers are in it only if the site asks for them
(`[metrics] job_info`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of durations, in seconds."""


class Histogram:
    """Counts of values by upper bound as in Prometheus's histograms, and their sum.

    >>> took = Histogram((0.1, 1.0))
    >>> took.observe(0.1), took.observe(0.5), took.observe(7.0)
    (None, None, None)
    >>> took.cumulative, round(took.sum, 1)
    ([1, 2, 3], 7.6)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and of all values."""
        return list(accumulate(self._counts))


class Durations(msgspec.Struct, frozen=True):
    """A histogram in the state file."""

    bounds: tuple[float, ...] = BOUNDS
    cumulative: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    sum: float = 0.0


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of the cluster and all counters of the planning process."""

    at: float
    in_control: bool
    names: tuple[str, ...] = ()
    models: list[str] = []
    """By node, its GPU model; empty if its GPUs cannot be pinned. This column and the next are in node order."""
    gpus: dict[str, list[int]] = {}
    """By owner state, the number of GPUs of each node."""
    not_ready: int = 0
    """The number of GPU nodes on which Berth cannot place jobs."""
    slow: list[tuple[str, int, str, float]] = []
    """Node, position, application class and score of slow GPUs."""
    slow_counts: list[tuple[str, str, int]] = []
    """Model, application class, number of slow GPUs."""
    closed: list[tuple[str, int]] = []
    """Node and position of GPUs that their guards have closed to guests."""
    idle: list[tuple[str, str, float]] = []
    """Node and position of GPUs that a job holds, and the seconds for which they have run no kernel."""
    islands: list[tuple[str, int, int]] = []
    """Model, size, and number of sets of so many free GPUs that NVLink joins."""
    stranded_gpus: float = 0.0
    empty_nodes: int = 0
    empty_nodes_of_a_leaf: int = 0
    """The number of empty nodes in the leaf that has most of them."""
    waiting: dict[str, int] = {}
    running: dict[str, int] = {}
    holds: list[tuple[str, int]] = []
    """UUID of a GPU and number of a job that holds it, if the site asks for that."""
    counts: dict[str, float] = {}
    failed: dict[str, int] = {}
    passes: Durations = Durations()
    looks: Durations = Durations()


class _StateFile(msgspec.Struct):
    """The part of the file that is decoded; the overview in it has every GPU and every job."""

    metrics: ClusterState


def read_metrics(content: bytes) -> ClusterState | None:
    """Returns the state in a state file; None if the planner has written none that this release can read."""
    try:
        return msgspec.json.decode(content, type=_StateFile).metrics
    except msgspec.MsgspecError:
        return None
