# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that belongs to its owner: what its guest may hold, and what the owner waits for.

The limits themselves are held in the guest, by MPS or by the library. What goes past them is seen at the next look at
the device.
"""

from collections.abc import Mapping
from contextlib import suppress

from prolog_epilog.guard.hold.guest_hold import GuestHold
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.heartbeat import Rank
from prolog_epilog.guard.roll import Member
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.word import OrderPage, WordBeat
from prolog_epilog.node import freezer
from prolog_epilog.tenants import reserve

_MIB = 1 << 20
_TELL_S = 1.0


class OwnerMemory:
    """One GPU's memory, divided between owner and guest."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._told: tuple[int, int] = (0, 0)
        self._told_at = 0.0

    def quota(self, host: Member | None, guest: Member, look: Look | None) -> int | None:
        """Returns the bytes that the guest may hold; 0: no limit.

        None: what its Prolog has said stands, until the device was seen.
        """
        own = (guest.mem_mib or 0) * _MIB
        if host is None:
            return own
        if look is None or not look.memory_bytes:
            return None
        room = max(1, reserve.ceiling_mib(look.memory_bytes // _MIB, reserve.need_mib(host, guest)) * _MIB)
        return min(own, room) if own else room

    def breach(self, need: int, guest: Member, look: Look) -> str:
        """Returns why the guest has to go: it holds memory that the owner needs. Empty if it does not."""
        held, total = look.held.get(guest.job, 0) // _MIB, look.memory_bytes // _MIB
        return f"it holds {held} MiB, and its host needs {need} of {total} MiB" if 0 < total < held + need else ""

    def tell(self, now: float, host: Member, held: GuestHold | None, look: Look | None) -> None:
        """Tells the owner's programs how much their guest holds, which an allocation that fails may wait for."""
        page = host.words.get(self._uuid)
        if held is not None and look is None:
            return  # what the guard before this one told stands until the device was seen
        told = host.job, self._held_bytes(held, look)
        if page is None or (told == self._told and (not told[1] or now - self._told_at < _TELL_S)):
            return
        self._told, self._told_at = told, now
        with suppress(WordError, OSError):
            order = OrderPage(page)
            order.tell_owner(told[1], lease_s=freezer.LEASE_SECONDS)
            order.close()

    def _held_bytes(self, held: GuestHold | None, look: Look | None) -> int:
        if held is None or look is None:
            return 0
        # What its programs say is newer, and may be false.
        said = min(sum(beat.used for beat in held.beats()), look.memory_bytes)
        return max(look.held.get(held.guest.job, 0), said)

    def is_awaited(self, words: Mapping[Rank, WordBeat]) -> bool:
        """Tells whether an allocation of the owner waits for what the guest holds."""
        return any(beat.lacking for (uuid, _), beat in words.items() if uuid == self._uuid)
