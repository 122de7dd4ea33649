# SPDX-License-Identifier: Apache-2.0
"""Decides what to move out of the GPU so that a job fits its memory target. Arithmetic only.

AntMan's rules: everything happens at step boundaries. A shrink that is not possible yet stops at what is still held,
and is tried again. What was moved comes back when there is room.
"""

import math
from dataclasses import dataclass

ROOM = 0.95
"""Data comes back if the target would be filled to this part at most: moving costs more than waiting."""
FULLEST = 0.9
"""An allocator holds pieces that fit nothing: it fails before it is full, so a cap leaves room beyond what was used."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The memory of the last step, in bytes."""

    peak: int
    """The most that was allocated at once, without what is spilled now."""
    state: int
    """The optimizer state, wherever it is."""
    activations: int
    """The most saved activations that were on the host at once."""
    most: int = 0
    """The highest peak of the last steps: no step is like the one before."""


@dataclass(frozen=True, slots=True)
class Spill:
    """The data that the next step keeps on the host between its uses."""

    state: bool = False
    activations: int = 0
    """The most bytes of saved activations."""


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """The decision for the next step."""

    spill: Spill
    cap: int
    """The bytes that the framework's allocator may hold; 0: no limit."""


def decide(target: int, host_bound: int, held: HeldMemory, now: Spill) -> ScalingStep:
    """Chooses what to keep on the host, from the memory of the last steps."""
    whole = held.peak + (held.state if now.state else 0) + held.activations
    if not target:
        return ScalingStep(Spill(), 0)
    if whole <= target * ROOM:
        return ScalingStep(Spill(), _cap(target, max(held.most, whole)))
    # A limit below what the job must hold would end the job.
    cap = _cap(target, max(held.most, held.peak))
    if held.peak <= target:
        return ScalingStep(now, cap)
    missing = whole - target
    state = 0 < held.state <= host_bound
    if state:
        missing -= held.state
    room = host_bound - (held.state if state else 0)
    # Some activations are in use at any time, so a little more has to go than is missing.
    activations = min(max(int(missing / ROOM), 0), max(room, 0))
    spill = Spill(state, max(activations, now.activations if state == now.state and missing > 0 else 0))
    return ScalingStep(spill, cap)


def _cap(target: int, need: int) -> int:
    return max(target, math.ceil(need / FULLEST))
