# SPDX-License-Identifier: Apache-2.0
"""The kinds of worlds: a cluster with berthd, nodes with their programs, and both in one; each is played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tests.world.clock import Replaced
from tests.world.nodes.script import drawn_nodes
from tests.world.nodes.world import NodeWorld
from tests.world.script import Step, drawn
from tests.world.whole.script import drawn_whole
from tests.world.whole.world import WholeWorld
from tests.world.world import DeterministicWorld


class PlayedWorld(Protocol):
    """A world that plays scripts."""

    happened: Counter[str]
    replaced: Replaced

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def play(self, script: Iterable[Step], *, calm: bool = True) -> None:
        """Play a script, and with `calm` its good end."""

    def step(self, step: Step) -> None:
        """One step, and all checks."""


@dataclass(frozen=True)
class WorldKind:
    """A kind of world, and the scripts that are played in it."""

    name: str
    made: Callable[[], PlayedWorld]
    drawn: Callable[..., list[Step]]
    events: int
    """Steps of a script."""
    player: str
    """The function that a test calls."""


CLUSTER = WorldKind("cluster", DeterministicWorld, drawn, 300, "play")
NODES = WorldKind("nodes", NodeWorld, drawn_nodes, 200, "play_nodes")
WHOLE = WorldKind("whole", WholeWorld, drawn_whole, 200, "play_whole")
KINDS = (CLUSTER, NODES, WHOLE)
