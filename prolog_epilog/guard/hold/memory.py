# SPDX-License-Identifier: Apache-2.0
"""The guest's target of GPU memory: lowered at once when the GPU runs full, raised again slowly."""

from prolog_epilog.guard.hold.guest_hold import GuestHold
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.settings.guard_keys import MachineSettings

_SLACK = 0.05
"""The target is this far below the mark, so that the guest is not asked again at once."""
_RAISE_EVERY_S = 30.0
_RAISE = 1.0 / 16.0
"""The part of the GPU's memory that is given back at a time."""


class MemoryTarget:
    """The memory target of one guest, in bytes."""

    def __init__(self, settings: MachineSettings) -> None:
        self._mark = settings.healthy_memory
        self._bytes = 0
        self._changed = 0.0

    def ask(self, now: float, look: Look | None, held: GuestHold) -> None:
        """Lowers the target because the GPU is full: the guest gives back what is above the mark."""
        if look is None or look.sample.memory is None:
            return
        # The processes' own figures may be false: together they cannot hold more than the GPU has.
        used = min(sum(beat.used for beat in held.beats()), look.memory_bytes)
        over = round((look.sample.memory - self._mark + _SLACK) * look.memory_bytes)
        # Nothing is asked of a guest whose memory use is unknown: its quota and the state machine still bound it.
        if used > 0:
            self._bytes = max(1, used - over)
            self._changed = now

    def wish(self, now: float, look: Look | None, held: GuestHold) -> int:
        """Returns the target now; 0: no limit."""
        if not self._bytes or look is None or look.sample.memory is None or now - self._changed < _RAISE_EVERY_S:
            return self._bytes
        if look.sample.memory < self._mark - 2.0 * _SLACK - _RAISE:
            self._changed = now
            self._bytes += round(_RAISE * look.memory_bytes)
            if self._bytes >= min(max((beat.peak for beat in held.beats()), default=0), look.memory_bytes):
                self._bytes = 0
        return self._bytes
