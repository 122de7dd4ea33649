# SPDX-License-Identifier: Apache-2.0
"""The cost of a berth: one formula for berthd, the commands and the simulator.

    predicted time / ideal time = greatest score of its GPUs  x  locality  x  links

*Locality* depends on the level at which the berth's GPUs meet. If a table says so, it also depends on the job's model
or application class, and on its width in GPUs. *Links* depends on the narrowest cut of the GPUs of a node.

>>> costs = CostModel()
>>> costs.locality("resnet50", "compute", "leaf", gpus=16)
1.16
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.formats.errors import ConfigError, nearest
from topology.network.fabric import LEVELS

Widths = Mapping[int, float]
"""Factors, each from a width in GPUs on: `{2: 1.1, 16: 1.3}`."""

Table = Mapping[str, Mapping[str, Widths]]
"""Factors by model, application class, or `*` for all others; then by level; then by width."""

EVERYONE = "*"


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


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost tables of a site."""

    localities: Table = field(default_factory=lambda: PUBLISHED)
    communication: float = 0.0
    """Part of a step in which a job's GPUs wait for each other's data, on the best links of the cluster."""

    def __post_init__(self) -> None:
        for name, levels in self.localities.items():
            for level, widths in levels.items():
                if level not in LEVELS:
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
