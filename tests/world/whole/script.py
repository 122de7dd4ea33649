# SPDX-License-Identifier: Apache-2.0
"""Scripts for the whole: steps as the cluster has them, and those of the nodes behind the word `on`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.world import script
from tests.world.nodes import script as of_nodes
from tests.world.script import Step, Words
from tests.world.submit import KINDS, TIERS

_OTHERS = frozenset({"epilog", "epilog-ends", "degrade", "guard", "word"})
"""Steps of the cluster that the real programs of the nodes take here."""
_OF_CLUSTER = tuple(one for one in script.STEPS if one[0] not in _OTHERS)
_OF_NODES = tuple(
    one for one in of_nodes.STEPS if one[0] not in {"submit", "sched", "wait", "people", "node", "clock", "berthd"}
)
_BY_FAULTS = frozenset({"partition", "control", "release", "kill", "fault", "fault-of-change", "outage", "clock"})
_ALL_FAULTS = of_nodes.FAULTS | _BY_FAULTS
_STARTS: tuple[Step, ...] = (("pass", 1), ("write", 50), ("sched", 0))


@dataclass(frozen=True)
class WholeMood:
    """What comes often in a script: else jobs and faults that matter to each other seldom meet."""

    kinds: tuple[tuple[str, ...], ...]
    """Kinds of jobs; one of these is drawn."""
    faults: frozenset[str] = frozenset()
    """Faults that come in half of these scripts in any case."""
    hosts: int = 0
    """Hosts that run at first, so that guests find no GPU that nobody uses."""
    host: str = "host"
    """The kind of these."""


_MOODS = (
    WholeMood((("share", "share-array", "whole"), ("share", "host", "guest", "upgrade"), KINDS)),
    WholeMood((("host", "guest", "guest", "whole"), KINDS[:9], KINDS[6:])),
    WholeMood((("guest", "guest", "host"), ("guest", "guest", "host", "whole")), frozenset({"hang", "gpu"}), 3),
    WholeMood((("share",), ("share", "share", "share-array")), frozenset({"kill", "cut"})),
    WholeMood((("whole", "gang", "nodelist"), ("whole", "array", "share", "guest")), frozenset(), 3, "whole"),
    WholeMood((("host-mps", "guest-mps", "host"), (*TIERS, "share", "whole")), frozenset({"mps"}), 3, "host-mps"),
)


def drawn_whole(seed: int, count: int, words: Words = frozenset()) -> list[Step]:
    """The script of a seed: the first step sets the settings of both halves."""
    draw = Random(seed)
    mood = draw.choice(_MOODS)
    faults = frozenset(draw.sample(sorted(_ALL_FAULTS), draw.choice((0, 2, 4, 6, 15))))
    faults |= mood.faults if draw.randrange(2) else frozenset()
    steps_of = [*((name, weight, False) for name, weight in _OF_CLUSTER), *((*one, True) for one in _OF_NODES)]
    weights = [script.often(name, weight * _often(draw, name, faults), words) for name, weight, _ in steps_of]
    drawn = (draw.choice(mood.kinds), tuple(draw.sample(script.PEOPLE, 7)), tuple(draw.sample(script.NODES, 5)))
    few = script.only(words, drawn)
    steps: list[Step] = [
        ("site", draw.getrandbits(11), draw.randrange(3), draw.randrange(3), max(0, draw.randint(-4, 3)),
         14 if mood.hosts else draw.choice((3, 6, 14)), draw.getrandbits(8), draw.randrange(3),
         draw.choice((0, 0, 1, 2))),
        ("start",), ("pass", 1), ("hear",),
    ]  # fmt: skip
    if draw.randrange(4):
        steps += [("on", "guard", number) for number in range(3)]
    if mood.hosts:
        steps += [("submit", mood.host, size, 200, "COMPLETED", 0) for size in (3, 1, 1)[: mood.hosts]]
        steps += [*_STARTS, ("wait", 30), ("pass", 1), ("hear",)]
    while len(steps) < count:
        steps += _next(draw, *draw.choices(steps_of, weights)[0], few)
    return steps


def _often(draw: Random, name: str, faults: frozenset[str]) -> float:
    if name not in _ALL_FAULTS:
        return draw.choice((0.3, 1.0, 3.0))
    return draw.choice((1.5, 4.0)) * (name in faults)


def _next(draw: Random, name: str, _: int, on_node: bool, few: tuple[tuple[str, ...], ...]) -> list[Step]:
    if on_node:
        step: Step = ("on", *of_nodes.node_step(draw, name, ()))
        # What hangs has to hang for a while.
        return [step, ("wait", 100)] if name == "hang" and draw.randrange(2) else [step]
    step = script.cluster_step(draw, name, few)
    if name.startswith("during") and step[2] in _OTHERS:
        step = (*step[:2], "on", *of_nodes.node_step(draw, "run", ()))
    # Jobs that start soon meet others on their GPUs.
    return [step, *_STARTS] if name == "submit" and draw.randrange(2) else [step]
