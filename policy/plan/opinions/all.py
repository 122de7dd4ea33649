# SPDX-License-Identifier: Apache-2.0
"""All opinions, in the order in which a pass asks them. A new one is one line here."""

from policy.plan.opinions.elsewhere import Elsewhere
from policy.plan.opinions.ends_sooner import EndsSooner
from policy.plan.opinions.guests.choosing import Chooser
from policy.plan.opinions.guests.guest_pass import GuestPass
from policy.plan.opinions.lost_node import LostNode
from policy.plan.opinions.opinion import Opinion
from policy.plan.opinions.others_first import OthersFirst
from policy.plan.opinions.partitions import OtherPartitions
from policy.plan.opinions.reservations import OpenTry, Reservations
from policy.plan.opinions.shares import Shares
from policy.plan.opinions.siblings import Siblings
from policy.plan.opinions.spreading import Spreading
from policy.plan.opinions.without_gpus import WithoutGpus
from policy.request.settings import Settings


def all_opinions(settings: Settings, chooser: Chooser | None = None) -> list[Opinion]:
    """Returns the opinions that a site has; `chooser` chooses seats by the profiles of guests and hosts."""
    tries: dict[int, OpenTry] = {}
    others_first = [OthersFirst()] if settings.look_ahead and settings.pin_ahead else []
    return [
        GuestPass(chooser),
        WithoutGpus(),
        LostNode(),
        Elsewhere(),
        OtherPartitions(),
        Siblings(),
        Reservations(tries),
        Spreading(tries),
        EndsSooner(),
        *others_first,
        Shares(),
    ]


WITH_REASONS: tuple[type[Opinion], ...] = (LostNode, OthersFirst, GuestPass, EndsSooner, Shares)
"""Opinions that may be why a job waits, in the order in which they are asked for its reason."""
