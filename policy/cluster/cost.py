# SPDX-License-Identifier: Apache-2.0
"""The cost of a berth: one formula for berthd, the commands and the simulator.

    predicted time / ideal time = greatest score of its GPUs  x  locality  x  links  x  neighbours

*Locality* depends on the level at which the berth's GPUs meet. If a table says so, it also depends on the job's model
or application class, and on its width in GPUs. *Links* depends on the narrowest cut of the GPUs of a node.
*Neighbours* counts where other GPU jobs run on the same node; it stands in the same table, as a level of its own.

>>> costs = CostModel()
>>> costs.locality("resnet50", "compute", "leaf", gpus=16)
1.16
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policy.formats.errors import ConfigError, nearest
from topology.network.fabric import LEVELS

Widths = Mapping[int, float]
"""Factors, each from a width in GPUs on: `{2: 1.1, 16: 1.3}`."""

Table = Mapping[str, Mapping[str, Widths]]
"""Factors by model, application class, or `*` for all others; then by level; then by width."""

EVERYONE = "*"

NEIGHBOURS = "neighbours"
"""The level of the factor that counts where other GPU jobs run on the same node."""

LINKS = "links"
"""The level of the factor of links that are half as wide as the best, in the row of all jobs."""

COMMUNICATION = 0.1
"""Part of a step that is communication where a site says nothing (docs/research/links.md)."""


def one_factor(**levels: float) -> dict[str, Widths]:
    """Returns a row whose factors do not depend on the width.

    >>> one_factor(leaf=1.3, pod=1.7)
    {'leaf': {2: 1.3}, 'pod': {2: 1.7}}
    """
    return {level: {2: factor} for level, factor in levels.items()}


PUBLISHED: Table = {
    # Two V100-class GPUs in two servers over RDMA against one server: 98.0 of 114.8 images/s (Philly, table 4).
    # For farther levels nothing is published for such jobs: PAL's default for any two nodes is the upper bound.
    EVERYONE: one_factor(leaf=1.17, pod=1.3, any=1.7),
    # PAL's own measurements by model, from its artifact; it has no levels beyond "another node".
    "resnet50": {"leaf": {16: 1.16}, "pod": {16: 1.16}, "any": {2: 1.17, 16: 1.3}},
    "PointNet": {level: {8: 1.1, 12: 1.2, 16: 1.25} for level in ("leaf", "pod", "any")},
}
"""The localities of a site that sets none."""

ACROSS_NODES = 1.7
"""PAL's locality penalty for a job on more than one node."""


def pal_locality(across: float = ACROSS_NODES) -> Table:
    """Returns PAL's model: one penalty for any two nodes, none within a node."""
    return {EVERYONE: one_factor(leaf=across, pod=across, any=across)}


def read_costs(lines: Iterable[str], source: str) -> dict[str, dict[str, dict[int, float]]]:
    """Reads a table of costs.

    >>> read_costs(["name,level,width,factor", "vision,neighbours,1,1.52"], "costs.csv")
    {'vision': {'neighbours': {1: 1.52}}}
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    rows = csv.DictReader(lines)
    for row in rows:
        try:
            levels = found.setdefault(row["name"].strip(), {})
            levels.setdefault(row["level"].strip(), {})[int(row["width"])] = float(row["factor"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(
                f"{source}, line {rows.line_num}: a row has name, level, width (a whole number) and factor (a number)"
            ) from None
    return found


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost tables of a site."""

    localities: Table = field(default_factory=lambda: PUBLISHED)
    communication: float = 0.0
    """Part of a step in which a job's GPUs wait for each other's data, on the best links of the cluster."""
    accounts: frozenset[str] = frozenset()
    """Accounts that have rows of their own: each one stands for the model that its jobs run."""
    neighbours_count: bool = field(init=False)
    """True if neighbours cost any job anything."""

    @classmethod
    def of_site(cls, lines: Iterable[str]) -> "CostModel":
        """Returns the costs of a site: its table where it has a row, else the published ones."""
        table = read_costs(lines, "[berthd] costs")
        halved = table.get(EVERYONE, {}).pop(LINKS, {0: 1.0 + COMMUNICATION})
        merged = {name: {**PUBLISHED.get(name, {}), **table.get(name, {})} for name in {**PUBLISHED, **table}}
        return cls(merged, max(halved.values()) - 1.0, frozenset(table))

    def __post_init__(self) -> None:
        counts = any(NEIGHBOURS in levels for levels in self.localities.values())
        object.__setattr__(self, "neighbours_count", counts)
        if not 0.0 <= self.communication < 1.0:
            raise ConfigError(f"links of {EVERYONE}: the factor lies in 1 to 2")
        for name, levels in self.localities.items():
            for level, widths in levels.items():
                if level not in LEVELS and level != NEIGHBOURS:
                    raise ConfigError(f"locality of {name}: there is no level {level}{nearest(level, LEVELS)}")
                if any(width < 1 or not 1.0 <= factor < 100.0 for width, factor in widths.items()):
                    raise ConfigError(
                        f"locality of {name}, level {level}: widths count from 1 and factors lie in 1 to 100"
                    )

    def locality(self, model: str, app_class: str, level: str, gpus: int) -> float:
        """Returns the factor of a level; rows of the model come before those of the class, and those before `*`."""
        for name in (model, app_class, EVERYONE):
            widths = self.localities.get(name, {}).get(level)
            if widths:
                reached = [width for width in widths if width <= gpus]
                return widths[max(reached)] if reached else 1.0
        return 1.0

    def links(self, best: float, cut: float) -> float:
        """Returns the factor of GPUs with `cut` GB/s across their narrowest cut, where the best ones have `best`.

        >>> CostModel(communication=0.1).links(best=155.0, cut=15.5)
        1.9
        """
        return 1.0 + self.communication * max(0.0, best / cut - 1.0) if cut else 1.0
