# SPDX-License-Identifier: Apache-2.0
"""Scripts for the nodes: lists of steps as those of the cluster."""

from __future__ import annotations

from random import Random

from tests.world.script import Step

KINDS = ("share", "share", "share", "host", "guest", "guest", "whole")
PEOPLE = ("cancel", "requeue", "requeue", "begin", "end", "end", "end")
PROGRAMS = ("prolog", "epilog", "guard", "holder", "holder", "dead-man", "aftermath")
MPS = ("dies", "server-dies", "fault", "hangs", "refuses", "works", "works", "no-server", "slow", "missing")
GPU = ("fails", "works", "works", "busy", "idle", "idle", "hot", "xid", "lost")
DISK = ("full", "free", "free", "fails")

STEPS = (
    *(("submit", 24), ("sched", 10), ("run", 16), ("wait", 24), ("people", 14), ("client", 3)),
    *(("kill", 2), ("cut", 8), ("hang", 4), ("go", 2), ("again", 4), ("guard", 1), ("stop", 1)),
    *(("mps", 3), ("gpu", 2), ("disk", 2), ("slurm", 1), ("script", 1), ("node", 4)),
    *(("notices", 1), ("berthd", 1), ("clock", 1)),
)
FAULTS = frozenset({"kill", "cut", "hang", "stop", "mps", "gpu", "disk", "slurm", "script", "clock"})


def drawn_nodes(seed: int, count: int) -> list[Step]:
    """The script of a seed: the first step sets the site's settings."""
    draw = Random(seed)
    names, weights = zip(*STEPS, strict=True)
    # Some seeds have few faults, or none but one kind: what must hold without faults is checked there.
    kinds = frozenset(draw.sample(sorted(FAULTS), draw.choice((0, 1, 2, 9))))
    mood = [
        weight * (draw.choice((0.2, 1.0, 3.0)) if name not in FAULTS else draw.choice((0.5, 2.0)) * (name in kinds))
        for name, weight in zip(names, weights, strict=True)
    ]
    # Jobs of few kinds meet oftener.
    jobs = draw.choice((KINDS, KINDS, ("share",), ("host", "guest", "guest"), ("whole", "guest")))
    steps: list[Step] = [("site", draw.getrandbits(9), draw.randrange(3), draw.choice((3, 5, 8)))]
    if draw.randrange(4):
        steps += [("guard", 0), ("guard", 1)]
    while len(steps) < count:
        steps += _next(node_step(draw, draw.choices(names, mood)[0], jobs), often=not draw.randrange(2))
    return steps


def _next(step: Step, *, often: bool) -> list[Step]:
    """A step, and what often comes after such a one: a node whose Epilog was killed is resumed, and a hang lasts."""
    match step[:2]:
        case ("cut", "epilog") if often:
            return [step, ("node", "resume", 0), ("node", "resume", 1)]
        case ("hang", _) if often:
            return [step, ("wait", 20)]
    return [step]


def node_step(draw: Random, name: str, jobs: tuple[str, ...]) -> Step:  # noqa: PLR0912 - a table
    some = draw.randrange(12)
    match name:
        case "submit":
            # Few GPUs, so that jobs meet.
            work, user = draw.choice((1, 5, 20, 60, 200)), draw.choice((0, 0, 0, 1))
            return name, draw.choice(jobs), draw.choice((0, 0, 0, 1, 2, 4)), some, work, user
        case "run":
            kind = draw.choice(("prolog", "prolog", "epilog", "epilog", "guard", ""))
            return name, kind, some, draw.choice((1, 3, 10, 30, 100, 300))
        case "cut":
            return name, draw.choice(("prolog", "epilog")), some, draw.randrange(draw.choice((30, 400))) + 1
        case "wait":
            return name, draw.choice((1, 3, 10, 20, 50, 50, 100, 200, 700))
        case "people":
            return name, draw.choice(PEOPLE), some
        case "client":
            return name, draw.choice(("crash", "rests", "fork")), some
        case "kill" | "hang":
            return name, draw.choice(PROGRAMS), some
        case "again":
            return name, draw.choice(("epilog", "epilog", "prolog")), some
        case "guard" | "stop":
            return name, some
        case "mps":
            return name, draw.choice(MPS), some
        case "gpu":
            return name, draw.choice(GPU), some
        case "disk":
            return name, draw.choice(DISK), some
        case "slurm":
            return name, draw.choice(("out", "back", "back"))
        case "script":
            return name, draw.choice(("fails", "hangs", "works", "works")), some
        case "node":
            return name, draw.choice(("resume", "resume", "resume", "reboot", "drain")), some
        case "notices":
            return name, draw.choice(("lost", "heard"))
        case "berthd":
            return name, draw.choice(("hears", "deaf"))
        case "clock":
            return name, draw.choice((-3_600, -60, 60, 3_600))
        case _:
            return (name,)
