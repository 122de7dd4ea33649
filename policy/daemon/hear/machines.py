# SPDX-License-Identifier: Apache-2.0
"""Notices with the UUIDs of nodes' GPUs: a node that comes back under its name may be another machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from topology.model import Machine

_PAYLOAD = re.compile(
    rb"berth/1 machine node=([A-Za-z0-9_.-]{1,255}) gpus=([A-Za-z0-9-]{1,64}(?:,[A-Za-z0-9-]{1,64}){0,63})"
)


@dataclass(frozen=True, slots=True)
class MachineWord:
    """One notice of a guard (docs/develop/formats.md)."""

    node: str
    uuids: tuple[str, ...]
    """The UUIDs of the node's GPUs, by position."""
    job: int = 0


def read_word(payload: bytes) -> MachineWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    return match and MachineWord(match[1].decode(), tuple(match[2].decode().split(",")))


class HeardMachines:
    """The GPUs of the nodes that have reported them."""

    def __init__(self) -> None:
        self.told: Mapping[str, tuple[str, ...]] = {}
        """By node, the UUIDs of its GPUs; a new mapping at each change."""

    def hear(self, word: MachineWord) -> None:
        """Keeps a notice; a node sends one at each start of its guard."""
        if self.told.get(word.node) != word.uuids:
            self.told = {**self.told, word.node: word.uuids}


def others(machines: Mapping[str, Machine], told: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Returns the nodes whose GPUs differ from their topology files; MIG instances are not compared."""
    known = ((name, machines[name].gpus, now) for name, now in told.items() if name in machines)
    return frozenset(
        name for name, gpus, now in known if tuple(gpu.uuid for gpu in gpus) != now and not any(gpu.mig for gpu in gpus)
    )
