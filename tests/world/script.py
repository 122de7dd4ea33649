# SPDX-License-Identifier: Apache-2.0
"""Scripts: lists of steps, each a name and small numbers, so that any part of one is a script too."""

from __future__ import annotations

from random import Random

from tests.world import reservations
from tests.world.door import CALL_FAULTS
from tests.world.submit import FATES, KINDS, TIERS

Step = tuple[str | int, ...]
Words = frozenset[str]

PEOPLE = (
    *("cancel", "hold", "free", "requeue", "requeue-hold", "suspend", "resume", "stop", "continue", "limit"),
    *("priority", "expedite", "reservation-gone", "special-exit", "revoke", "nodes", "gpus", "signal", "resize"),
    *("gpus-alone", "no-requeue", "never-requeue", "exclude", "put-off"),
)
"""The changes of users and admins to one job."""

NODES = ("drain", "resume", "down", "reboot", "mute", "heard", "power-off", "maintain", "fewer-gpus", "all-gpus",
         "forget", "recall", "power-off-soon", "power-on", "reboot-soon", "fail")  # fmt: skip
"""The changes of one node."""

GUARD = ("leave", "evict", "fault", "state")

STEPS = (
    *(("submit", 14), ("pass", 16), ("hear", 8), ("write", 14), ("sched", 12), ("wait", 16), ("start", 6)),
    *(("epilog", 10), ("deliver", 10), ("epilog-ends", 3), ("degrade", 3), ("guard", 4), ("word", 2)),
    *(("people", 8), ("node", 4), ("partition", 1), ("control", 1), ("release", 2), ("kill", 2)),
    *(("reserve", 2), ("unreserve", 1)),
    *(("fault", 4), ("fault-of-change", 4), ("during", 4), ("during-change", 4)),
    *(("outage", 1), ("clock", 1), ("config-read", 1)),
)
"""Kinds of steps, and how often each comes."""

_WITHIN_A_CALL = ("people", "node", "sched", "epilog", "epilog-ends", "submit", "hear", "ends", "reserve", "unreserve")
"""Steps of others that may come between two of berthd's calls, or into the middle of one."""


_ON_FULL = ("whole",), ("whole", "gang"), ("whole", "whole", "array", "share", "nodelist")
"""Kinds of jobs on a cluster that is full from the first step on: some of them close their partition."""


def often(name: str, weight: float, words: Words) -> float:
    """The weight of a step, or more of it if a word names this step or a change that it draws."""
    named = {name, *{"people": PEOPLE, "node": NODES}.get(name, ())}
    return 3.0 * max(weight, 4.0) if named & words else weight


def only(words: Words, few: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """The jobs and changes of a script: those that `words` name, or the drawn ones of which no word names one."""
    return tuple(
        tuple(one for one in names if one in words) or drawn_ones
        for names, drawn_ones in zip(((*KINDS, *TIERS), PEOPLE, NODES), few, strict=True)
    )


def drawn(seed: int, count: int, words: Words = frozenset()) -> list[Step]:
    """The script of a seed: the first step sets the site's settings, the others happen in turn.

    More of them are of the kinds that `words` name: steps, jobs, changes of jobs and of nodes.
    """
    draw = Random(seed)
    names, weights = zip(*STEPS, strict=True)
    # Each seed has few kinds of jobs and changes, and some faults often: so those meet that seldom meet.
    mood = [
        often(name, weight * draw.choice((0.2, 1.0, 1.0, 3.0)), words)
        for name, weight in zip(names, weights, strict=True)
    ]
    few: tuple[tuple[str, ...], ...] = (
        tuple(draw.sample(KINDS, draw.choice((4, 8, 16)))),
        tuple(draw.sample(PEOPLE, 7)),
        tuple(draw.sample(NODES, 5)),
    )
    dead, most_jobs = max(0, draw.randint(-4, 4)), draw.choice((3, 6, 14))
    is_full = not draw.randrange(3)
    if is_full:
        few = draw.choice(_ON_FULL), ("exclude", *few[1][1:]), few[2]
        most_jobs = 14
    few = only(words, few)
    steps: list[Step] = [("site", draw.getrandbits(11), draw.randrange(3), draw.randrange(3), dead, most_jobs)]
    steps += [("start",), ("pass", 1), ("hear",)]
    if is_full:
        steps += [("submit", "whole", size, 1_500, "COMPLETED", 0) for size in (3, 3, 3, 1)]
        steps += [("pass", 1), ("write", 50), ("sched", 0)]
    while len(steps) < count:
        steps.append(cluster_step(draw, draw.choices(names, mood)[0], few))
    return steps


def cluster_step(draw: Random, name: str, few: tuple[tuple[str, ...], ...]) -> Step:  # noqa: PLR0912 - a table
    kinds, people, nodes = few
    some = draw.randrange(12)
    match name:
        case "submit":
            work = draw.choice((1, 5, 20, 60, 200))
            return name, draw.choice(kinds), some, work, draw.choice(FATES), draw.choice((0, 0, 0, 0, 1, 2))
        case "pass" | "write":
            return name, draw.choice((1, 1, 2, 50))
        case "sched":
            return name, draw.randrange(2)
        case "wait":
            return name, draw.choice((1, 3, 10, 10, 30, 100, 1_300))
        case "deliver":
            return name, some, draw.choice(("", "", "keep", "keep", "lose", "with-next"))
        case "people":
            return name, draw.choice(people), some
        case "node":
            return name, draw.choice(nodes), some
        case "fault" | "fault-of-change":
            return name, draw.choice(CALL_FAULTS), draw.randrange(8 if name == "fault" else 3)
        case "during" | "during-change":
            return (
                name,
                draw.randrange(8 if name == "during" else 3),
                *cluster_step(draw, draw.choice(_WITHIN_A_CALL), few),
            )
        case "clock":
            return name, draw.choice((-3_600, -60, -2, 2, 60, 3_600))
        case "kill":
            return name, draw.randrange(2)
        case "guard":
            return name, draw.choice(GUARD), some
        case "partition":
            return name, draw.choice(("UP", "UP", "DOWN", "DRAIN", "INACTIVE"))
        case "control" | "release":
            return name, draw.randrange(2)
        case "reserve" | "unreserve":
            return name, draw.choice(reservations.KINDS), some, draw.choice((40, 300, 40_000))
        case "outage":
            return name, draw.choice((2, 10, 40))
        case "epilog" | "epilog-ends" | "word" | "degrade" | "ends":
            return name, some
        case _:
            return (name,)
