# SPDX-License-Identifier: Apache-2.0
"""Describes kinds of machines, and builds nodes of a kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from topology.model import Discovered, Gpu, Link, Machine, Nic, PathWord, Via
from topology.providers import speeds
from topology.providers.naming import short_model

#: What two devices are to each other when this part of their places is the first that differs.
_LEVELS: tuple[PathWord, ...] = ("SYS", "NODE", "PHB", "PXB")


@dataclass(frozen=True, slots=True)
class Card:
    """One function of a network card."""

    name: str
    place: str
    kind: str = ""
    gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The properties that all nodes of a kind share.

    A place is `NUMA/BRIDGE/UPPER/LOWER`: NUMA node, host bridge in it, upper and lower PCIe switch below that one;
    NUMA node -1 is another one that the source does not name.
    """

    source: str
    """Source of the matrix, and the facts that it lacks."""
    gpu: str
    """The name that the driver gives."""
    memory_mib: int
    gpus: tuple[str, ...]
    """Place of each."""
    cpus: Mapping[int, str]
    """CPUs of each NUMA node that has GPUs."""
    cards: tuple[Card, ...] = ()
    mesh: int = 0
    """NVLinks of each pair, where all pairs have as many."""
    wires: tuple[tuple[int, int, int], ...] = ()
    """Or pair by pair: GPU, GPU, NVLinks."""
    via: Via = "direct"
    switches: int = 0
    c2c_gbps: float = 0.0

    def build(self, node: str, uuids: Sequence[str], name: str) -> Machine:
        """Returns a node of this kind."""
        model = short_model(self.gpu)
        mbps = speeds.of_model(model) or 0
        wires = self.wires or tuple((a, b, self.mesh) for a, b in combinations(range(len(self.gpus)), 2) if self.mesh)
        return Machine(
            node=node,
            model=model,
            gpus=tuple(
                Gpu(
                    position=i,
                    minor=i,
                    uuid=uuids[i],
                    name=self.gpu,
                    numa=_numa(place),
                    cpus=self.cpus[_numa(place)],
                    memory_mib=self.memory_mib,
                    c2c_gbps=self.c2c_gbps,
                )
                for i, place in enumerate(self.gpus)
            ),
            links=tuple(Link(a, b, count, round(count * mbps / 1000, 3), self.via) for a, b, count in sorted(wires)),
            paths=tuple(
                tuple("SELF" if a == b else relation(one, other) for b, other in enumerate(self.gpus))
                for a, one in enumerate(self.gpus)
            ),
            discovered=Discovered(at="", by=f"named machine {name}"),
            nics=tuple(Nic(card.name, numa=_numa(card.place), kind=card.kind, gbps=card.gbps) for card in self.cards),
            nic_paths=tuple(tuple(relation(gpu, card.place) for card in self.cards) for gpu in self.gpus)
            if self.cards
            else (),
            switches=self.switches,
        )


def relation(one: str, other: str) -> PathWord:
    """Returns PCIe relation of two places.

    >>> relation("0/0/1/0", "0/0/1/0"), relation("0/0/1/0", "0/0/2/0")
    ('PIX', 'PHB')
    """
    pairs = zip(_LEVELS, one.split("/"), other.split("/"), strict=True)
    return next((word for word, here, there in pairs if here != there), "PIX")


def _numa(place: str) -> int:
    return int(place.partition("/")[0])
