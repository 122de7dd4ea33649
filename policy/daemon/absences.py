"""Nodes that Slurm may soon know no more: no job's record should name them for long (see lists.py)."""

from collections.abc import Iterable

from policy.facts import NodeFacts

AWAY_FOR = 600.0
"""Seconds after which a node that takes no jobs may be on its way out of slurm.conf; a reboot takes less."""

LOOK_EVERY = 60.0
"""Seconds between two looks: each change makes all places be computed anew."""


class Absences:
    """Remembers since when nodes take no jobs."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._last: float | None = None
        self._away: frozenset[str] = frozenset()

    def of(self, nodes: Iterable[NodeFacts], at: float) -> frozenset[str]:
        """Those that can vanish while Slurm runs, or have taken no jobs for long."""
        nodes = list(nodes)
        if self._last is None or not 0 <= at - self._last < LOOK_EVERY:
            self._last = at
            self._since = {node.name: self._since.get(node.name, at) for node in nodes if not node.up}
            self._away = frozenset(name for name, since in self._since.items() if at - since >= AWAY_FOR)
        return self._away | {node.name for node in nodes if node.dynamic}
