# SPDX-License-Identifier: Apache-2.0
"""The reserve: the GPU memory that an owner needs, which its guest must leave to it.

An owner that finds no memory fails, so the reserve is held before the owner asks: by MPS's limit or by the library in
the guest. It does not depend on the owner's programs.
"""

from collections.abc import Callable
from typing import Protocol

from prolog_epilog.errors import CannotShare
from prolog_epilog.job.extra import GUARANTEED
from prolog_epilog.node import cgroups, devices
from prolog_epilog.node.devices import Driver
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import arrivals, share_file
from prolog_epilog.tenants.arrivals import Arrival
from prolog_epilog.tenants.share_file import ShareRecord

MARGIN = 0.05
"""The part of the GPU's memory that a guest leaves besides: for contexts and libraries, which no limit counts."""


class Sharer(Protocol):
    """A job on a GPU, as the reserve sees it."""

    @property
    def job(self) -> int:
        """Returns the job's number."""

    @property
    def mem_mib(self) -> int | None:
        """Returns the MiB of each GPU that the job says it needs; None if it says nothing."""

    @property
    def need(self) -> tuple[int, int] | None:
        """Returns an owner's number and the MiB that berthd knows it to need; for its guest."""


def need_mib(owner: Sharer, guest: Sharer) -> int | None:
    """Returns the MiB that an owner needs: as it says, else as was measured of such jobs; None if that is not known."""
    if owner.mem_mib is None and guest.need is not None and guest.need[0] == owner.job:
        return guest.need[1]
    return owner.mem_mib


def ceiling_mib(total_mib: int, need: int | None) -> int:
    """Returns the most MiB that a guest may hold beside an owner: none if the owner's need is not known.

    >>> ceiling_mib(80_000, 50_000), ceiling_mib(80_000, None)
    (26000, 0)
    """
    return 0 if need is None else max(0, int(total_mib * (1.0 - MARGIN)) - need)


def room_for(paths: Paths, guest: ShareRecord) -> int | None:
    """Returns the MiB that a guest may hold from its start; None: there is no limit. For its Prolog."""
    room = guest.mem_mib
    for owner in share_file.sharing(paths, guest.uuids, GUARANTEED):
        with devices.driver() as driver:
            left = ceiling_mib(driver.memory_mib(guest.uuids[0]), need_mib(owner, guest))
        if left < (guest.mem_mib or 1):
            raise CannotShare(
                f"job {owner.job} leaves {left} MiB of this GPU to a guest, as far as its need is known; berthd "
                f"places the job elsewhere"
            )
        room = min(left, room or left)
    return room


def make_room(paths: Paths, owner: ShareRecord, say: Callable[[str], None]) -> None:
    """Has guests leave that hold memory which an owner needs, and waits until they are gone; for its Prolog."""
    guests = arrivals.guests_on(paths, owner.uuids)
    if not guests:
        return
    with devices.driver() as driver:
        go = {uuid for guest in guests for uuid in guest.uuids if _is_in_the_way(driver, uuid, owner, guest)}
    if go & {*owner.uuids}:
        arrivals.meet(paths, Arrival(owner.job, tuple(sorted(go & {*owner.uuids})), planned=True), say)


def _is_in_the_way(driver: Driver, uuid: str, owner: ShareRecord, guest: ShareRecord) -> bool:
    need = need_mib(owner, guest)
    if need is None:
        return True
    held = {one.pid: one.memory_mib or 0 for one in driver.processes(uuid) if cgroups.job_of(one.pid) == guest.job}
    return sum(held.values()) + need > driver.memory_mib(uuid)
