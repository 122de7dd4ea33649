# SPDX-License-Identifier: Apache-2.0
"""Known faults planted in the whole: `python -m tests.world.whole.planted`; some only it can find."""

from __future__ import annotations

import sys
from typing import Any

from policy.daemon.passes import listeners
from policy.daemon.write import evictions
from prolog_epilog.sharing import time_slices
from prolog_epilog.tenants.state import Tenant
from tests.world.clock import Replaced
from tests.world.kinds import WHOLE
from tests.world.nodes.planted import NODE_PLANTED
from tests.world.planted import PLANTED, PlantedFault, main


def _a_guard_is_told_yes_for_nothing(put: Replaced) -> None:
    put.set(listeners.Listeners, "_send_away", lambda _, __: True)


def _a_guest_comes_back_to_where_it_was_sent_away(put: Replaced) -> None:
    evicted = evictions.evicted
    put.set(evictions, "evicted", lambda values, reason, back, _: evicted(values, reason, back, {}))


def _the_books_have_another_share_than_the_pin(put: Replaced) -> None:
    def broken(job: int, uid: int, share: int, *rest: Any, **more: Any) -> Any:
        return Tenant(job, uid, max(1, share // 2), *rest, **more)

    put.set(time_slices, "Tenant", broken)


_FROM_THE_HALVES = frozenset(
    {
        "shares are not added up",
        "the dead-man thaws nobody",
        "a notice that comes twice frees twice",
        "an owner is sent away in place of its guest",
        "an eviction forgets what the guest asked for",
        "lost Epilogs are not looked for",
        "an Epilog leaves the share file",
        "a node is told of a larger share",
        "owners are frozen with their guests",
        "an Epilog of a job without its share gets no answer",
    }
)

WHOLE_PLANTED = (
    PlantedFault("a guard is told yes for nothing", _a_guard_is_told_yes_for_nothing, 200),
    PlantedFault("a guest comes back to where it was sent away", _a_guest_comes_back_to_where_it_was_sent_away, 200),
    PlantedFault("the books have another share than the pin", _the_books_have_another_share_than_the_pin, 200),
    *(one for one in (*PLANTED, *NODE_PLANTED) if one.name in _FROM_THE_HALVES),
)


if __name__ == "__main__":
    sys.exit(main(WHOLE_PLANTED, WHOLE))
