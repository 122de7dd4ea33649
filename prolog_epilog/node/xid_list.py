# SPDX-License-Identifier: Apache-2.0
"""The one list of Xids: what each tells of, and what NVIDIA's catalogue says is to be done about it.

Source: the tables "Xids" of docs.nvidia.com/deploy/xid-errors (catalogue for Ampere and newer), column "Immediate
Action". The guard, the failure rules (policy/retry/rules.toml) and `berth doctor node` go by it. A number that is not
in the list is reported and does nothing else.
"""

from enum import StrEnum


class Remedy(StrEnum):
    """The action that an Xid calls for."""

    NOTHING = "nothing: the driver has dealt with it"
    JOB = "start the job again"
    GPU = "reset the GPU"
    LINK = "look after the GPU's memory or links, and reset the GPU"
    NODE = "restart the node"


_REMEDIES: dict[Remedy, tuple[int, ...]] = {
    # The catalogue has no action for 43, and for 45 that of the fault before it: both end a program.
    Remedy.JOB: (13, 31, 32, 39, 40, 41, 43, 45, 68, 69, 70, 71, 72, 75, 76, 77, 94),
    Remedy.NOTHING: (63, 92),
    # 154 tells that the driver advises an action, and only its text says which: most often a reset.
    Remedy.GPU: (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 154),
    # Double-bit errors, NVLink up to the fourth generation, NVLink of the fifth one.
    Remedy.LINK: (48, 74, 144, 145, 146, 147, 148, 149, 150),
    Remedy.NODE: (79,),
}
_BY_NUMBER = {number: remedy for remedy, numbers in _REMEDIES.items() for number in numbers}

DRAINING_XIDS = frozenset(
    number for number, remedy in _BY_NUMBER.items() if remedy in {Remedy.GPU, Remedy.LINK, Remedy.NODE}
)
"""After these no job comes to the node before an admin has looked after the GPU."""
DEVICE_XIDS = DRAINING_XIDS | {63, 92, 94}
"""Faults of the device: DRAINING_XIDS, memory rows that are replaced, and errors that were contained in one program."""
MPS_XIDS = frozenset({13, 31, 43, 45})
"""Faults of a program that end every client of its MPS server. Other faults show in the server's state."""


def remedy(number: int) -> Remedy | None:
    """Returns what is to be done after an Xid; None for a number that the list does not have."""
    return _BY_NUMBER.get(number)
