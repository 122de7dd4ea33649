# SPDX-License-Identifier: Apache-2.0
"""Delta debugging: the shortest part of a script that still goes wrong in the same way, as a test to be pasted."""

from __future__ import annotations

import re
import time

from tests.world.checks import ViolationError
from tests.world.kinds import CLUSTER, WorldKind
from tests.world.script import Step

_SECONDS = 90.0


def shrunk(
    script: list[Step], problem: ViolationError, seconds: float = _SECONDS, of: WorldKind = CLUSTER
) -> list[Step]:
    """A part of the script that goes wrong as the whole of it: first whole blocks are left out, then single steps."""
    kind, until = kind_of(problem), time.monotonic() + seconds
    current, at_the_end = _up_to_the_problem(script, of)
    size = max(1, len(current) // 2)
    while size >= 1 and time.monotonic() < until:
        place, cut = 1, False
        while place < len(current) and time.monotonic() < until:
            shorter = current[:place] + current[place + size :]
            if goes_wrong(shorter, calm=at_the_end, of=of) == kind:
                current, cut = shorter, True
            else:
                place += size
        if not (cut and size == 1):
            size //= 2
    return current


def _up_to_the_problem(script: list[Step], of: WorldKind) -> tuple[list[Step], bool]:
    """Steps after the one that goes wrong do not matter; where it is the calm end that goes wrong, all of them do."""
    with of.made() as world:
        for number, step in enumerate(script, 1):
            try:
                world.step(step)
            except ViolationError:
                return script[:number], False
    return script, True


def goes_wrong(script: list[Step], *, calm: bool = True, of: WorldKind = CLUSTER) -> str:
    """The kind of what goes wrong with a script; empty where nothing does."""
    with of.made() as world:
        try:
            world.play(script, calm=calm)
        except ViolationError as problem:
            return kind_of(problem)
    return ""


def kind_of(problem: ViolationError) -> str:
    """Two violations are of one kind if they differ in numbers, names of nodes and texts of jobs alone."""
    text = re.sub(r"\[.*|\{.*|: n\d.*", "", str(problem))
    return re.sub(r"[0-9,.+-]+", "#", text)[:70]


def as_test(seed: int, script: list[Step], problem: ViolationError, of: WorldKind = CLUSTER) -> str:
    """Python text to be pasted into tests/world/test_world_found.py, or test_nodes_found.py beside it."""
    said = " ".join(str(problem).split())[:110]
    lines = "".join(f"        {step!r},\n" for step in script)
    return f"\n\ndef test_seed_{seed}() -> None:\n    # {said}\n    {of.player}([\n{lines}    ])\n"
