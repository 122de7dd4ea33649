# SPDX-License-Identifier: Apache-2.0
"""Scripts for both sides: what users, admins and nodes do, and what berthd's gateway is asked for."""

from __future__ import annotations

from random import Random

from tests.world.script import Step

KINDS = ("cpu", "whole", "gang", "typed", "typed", "share", "seat", "array", "array-typed", "held", "begin",
         "no-requeue", "nodelist", "exclude", "licenses", "expedite")  # fmt: skip

CHANGES = (
    *("StartTime=now", "StartTime=now", "StartTime=now+900", "AdminComment=words", "Extra=more", "Comment=text"),
    *("ReqNodeList=n2", "ReqNodeList=", "ExcNodeList=n1", "ExcNodeList=", "ReqNodeList=n9"),
    *("TresPerNode=gres/gpu:g3:1", "TresPerNode=gres/gpu:1", "Requeue=0", "Requeue=1", "NumNodes=1-1", "NumCPUs=2"),
    *("Licenses=berth_h100:1", "Features=h100", "Features=", "Nice=10", "Priority=2000", "Priority=0"),
    *("TimeLimit=30", "TimeLimit=90", "AdminComment=words StartTime=now+900"),
    "ReqNodeList=n2 TresPerNode=gres/gpu:g3:1 AdminComment=words Extra=more",
)
"""Changes by `scontrol update`: first those that Berth writes, and such as people make."""

VERBS = ("hold", "uhold", "release", "requeue", "requeuehold", "cancel", "suspend", "resume", "signal", "incomplete")
CALLS = (
    "pin",
    "pin",
    "pin-unknown-licence",
    "pin-share",
    "pin-guest",
    "release",
    "annotate",
    "delay",
    "park",
    "evict",
    "cancel",
    "annotate-requeue",
    "requeue",
    "warn",
)
CODES = (0, 0, 0, 1, 77, 78)
NODES = ("drain", "resume", "down", "undrain", "resume")
FORMS = ("own", "own", "own", "number", "none")
"""How a job is named: alone as Berth does, by its record's number, or by one that there is not."""

_STEPS = (
    *(("submit", 12), ("ends", 10), ("update", 10), ("people", 10), ("gateway", 12), ("node", 3), ("partition", 1)),
    ("gate", 5),
)


def drawn(seed: int, count: int) -> list[Step]:
    """The script of a seed."""
    draw = Random(seed)
    names, weights = zip(*_STEPS, strict=True)
    mood = [weight * draw.choice((0.3, 1.0, 2.0)) for weight in weights]
    kinds = tuple(draw.sample(KINDS, 6))
    steps: list[Step] = [("submit", draw.choice(kinds), draw.randrange(12))]
    while len(steps) < count:
        steps.append(_step(draw, draw.choices(names, mood)[0], kinds))
    return steps


def _step(draw: Random, name: str, kinds: tuple[str, ...]) -> Step:
    some = draw.randrange(12)
    match name:
        case "submit":
            return name, draw.choice(kinds), some
        case "ends":
            return name, some, draw.choice(CODES)
        case "update":
            return name, draw.choice(CHANGES), some, draw.choice(FORMS)
        case "people":
            return name, draw.choice(VERBS), some, draw.choice(FORMS)
        case "gateway":
            return name, draw.choice(CALLS), some
        case "node":
            return name, draw.choice(NODES), 1 + some % 4
        case "partition":
            return name, draw.choice(("UP", "UP", "DOWN", "DRAIN", "INACTIVE"))
        case _:
            return name, draw.choice(("open", "open", "close", "fail")), 1 + some % 4
