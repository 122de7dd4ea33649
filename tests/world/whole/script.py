"""Scripts for the whole: steps as the cluster has them, and those of the nodes behind the word `on`."""

from __future__ import annotations

from random import Random

from tests.world import script
from tests.world.nodes import script as of_nodes
from tests.world.script import Step
from tests.world.submit import KINDS

_OTHERS = frozenset({"epilog", "epilog-ends", "degrade", "guard", "word"})
"""Steps of the cluster that the real programs of the nodes take here."""
_OF_CLUSTER = tuple(one for one in script.STEPS if one[0] not in _OTHERS)
_OF_NODES = tuple(
    one for one in of_nodes.STEPS if one[0] not in {"submit", "sched", "wait", "people", "node", "clock", "berthd"}
)
_BY_FAULTS = frozenset({"partition", "control", "release", "kill", "fault", "fault-of-change", "outage", "clock"})
_MEETING = (
    ("share", "share-array", "whole"),
    ("host", "guest", "guest", "whole"),
    ("share", "host", "guest", "upgrade"),
)
"""Kinds of jobs that meet on a GPU."""


def drawn_whole(seed: int, count: int) -> list[Step]:
    """The script of a seed: the first step sets the settings of both halves."""
    draw = Random(seed)
    faults = frozenset(draw.sample(sorted(of_nodes.FAULTS | _BY_FAULTS), draw.choice((0, 2, 4, 6, 15))))
    steps_of = [*((name, weight, False) for name, weight in _OF_CLUSTER), *((*one, True) for one in _OF_NODES)]
    mood = [
        weight
        * (
            draw.choice((0.3, 1.0, 3.0))
            if name not in of_nodes.FAULTS | _BY_FAULTS
            else draw.choice((1.5, 4.0)) * (name in faults)
        )
        for name, weight, _ in steps_of
    ]
    kinds = draw.choice((*_MEETING, tuple(draw.sample(KINDS, 6)), tuple(draw.sample(KINDS, 12))))
    few = (kinds, tuple(draw.sample(script.PEOPLE, 7)), tuple(draw.sample(script.NODES, 5)))
    steps: list[Step] = [
        ("site", draw.getrandbits(10), draw.randrange(3), draw.randrange(3), max(0, draw.randint(-4, 3)),
         draw.choice((3, 6, 14)), draw.getrandbits(8), draw.randrange(3), draw.choice((0, 0, 1, 2))),
        ("start",), ("pass", 1), ("hear",),
    ]  # fmt: skip
    if draw.randrange(4):
        steps += [("on", "guard", number) for number in range(3)]
    while len(steps) < count:
        name, _, on_node = draw.choices(steps_of, mood)[0]
        if on_node:
            steps.append(("on", *of_nodes.node_step(draw, name, ())))
            continue
        step = script.cluster_step(draw, name, few)
        if name.startswith("during") and step[2] in _OTHERS:
            step = (*step[:2], "on", *of_nodes.node_step(draw, "run", ()))
        steps.append(step)
        if name == "submit" and draw.randrange(2):
            # Jobs that start soon meet others on their GPUs.
            steps += [("pass", 1), ("write", 50), ("sched", 0)]
    return steps
