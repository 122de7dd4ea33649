"""What to move out of the GPU so that a job fits its memory target. Arithmetic only.

AntMan's rules: everything happens at step boundaries; a shrink that is not possible yet ends at what is still held, and
is tried again; what was moved comes back when there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOM = 0.95
"""Things come back when the target would be filled to this part at most: moving costs more than waiting."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the last step showed, in bytes."""

    peak: int
    """Most that was allocated at once, with what is spilled now being away."""
    state: int
    """Optimizer state, wherever it is."""
    activations: int
    """Saved activations that were on the host at once."""


@dataclass(frozen=True, slots=True)
class Spill:
    """What the next step keeps on the host between its uses."""

    state: bool = False
    activations: int = 0
    """Bytes of saved activations, at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """The decision for the next step."""

    spill: Spill
    cap: int
    """Bytes that the framework's allocator may hold; 0: as it likes."""


def decide(target: int, host_bound: int, held: Held, now: Spill) -> Step:
    """Choose what to keep on the host, from what the last step showed."""
    whole = held.peak + (held.state if now.state else 0) + held.activations
    if not target or whole <= target * ROOM:
        return Step(Spill(), target)
    if held.peak <= target:
        return Step(now, target)
    missing = whole - target
    state = 0 < held.state <= host_bound
    if state:
        missing -= held.state
    room = host_bound - (held.state if state else 0)
    # Some activations are in use at any time, so a little more has to go than is missing.
    activations = min(max(int(missing / ROOM), 0), max(room, 0))
    spill = Spill(state, max(activations, now.activations if state == now.state and missing > 0 else 0))
    # What cannot be kept must not be forbidden: the job would die of it.
    return Step(spill, max(target, held.peak))
