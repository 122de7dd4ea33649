# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import cast

from hypothesis import strategies as st

from topology.machines.kinds import relation
from topology.model import NEAR, Gpu, Link, Machine, Nic, PathWord, Via

#: GB/s of one link, as drivers tell it: odd enough that sums of floats depend on their order.
LINK_SPEEDS = (14.062, 25.781, 26.562)
_FAR_WORDS = tuple(word for word in NEAR if word != "SELF")


@st.composite
def machines(draw: st.DrawFn, min_gpus: int = 1, max_gpus: int = 7) -> Machine:
    """Any machine: random links, random PCIe relations, as odd as the format allows."""
    size = draw(st.integers(min_gpus, max_gpus))
    speed = draw(st.sampled_from(LINK_SPEEDS))
    pairs = list(combinations(range(size), 2))
    counts = draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
    words = draw(st.lists(st.sampled_from(_FAR_WORDS), min_size=len(pairs), max_size=len(pairs)))
    return make_machine(size, dict(zip(pairs, counts, strict=True)), speed, words)


@st.composite
def wired_machines(draw: st.DrawFn, min_gpus: int = 2, max_gpus: int = 16) -> Machine:
    """A machine that could be built: sockets, bridges, PCIe switches, NICs; no NVLink, some, a mesh, or switches."""
    size = draw(st.integers(min_gpus, max_gpus))
    model = draw(st.sampled_from(["v100", "a100", "l40s", "h100", "nobody knows"]))
    numas = draw(st.integers(1, 4))
    place = st.tuples(st.integers(0, numas - 1), st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
    places = ["/".join(map(str, draw(place))) for _ in range(size)]
    cards = ["/".join(map(str, draw(place))) for _ in range(draw(st.integers(0, 4)))]
    speed = draw(st.sampled_from(LINK_SPEEDS))
    pairs = list(combinations(range(size), 2))
    kind = draw(st.sampled_from(["none", "some", "mesh", "switch"]))
    via: Via = "switch" if kind == "switch" else "direct"
    counts = {
        "none": st.just(0),
        "some": st.sampled_from([0, 0, 1, 2, 4]),
        "mesh": st.just(4),
        "switch": st.just(12),
    }[kind]
    known = draw(st.booleans())
    return Machine(
        node="n1",
        model=model,
        gpus=tuple(
            Gpu(
                i,
                i,
                f"GPU-{i}",
                name=model,
                numa=int(one[0]) if known else -1,
                c2c_gbps=draw(st.sampled_from([0.0, 0.0, 0.0, 223.56])),
            )
            for i, one in enumerate(places)
        ),
        links=tuple(Link(a, b, n, round(n * speed, 3), via) for a, b in pairs if (n := draw(counts))),
        paths=tuple(
            tuple("SELF" if a == b else relation(one, other) for b, other in enumerate(places))
            for a, one in enumerate(places)
        ),
        nics=tuple(Nic(f"mlx5_{i}", numa=int(card[0])) for i, card in enumerate(cards)),
        nic_paths=tuple(tuple(relation(one, card) for card in cards) for one in places) if cards else (),
        switches=6 if via == "switch" else 0,
    )


def make_machine(
    size: int, counts: dict[tuple[int, int], int], speed: float = 25.781, words: Sequence[str] | None = None
) -> Machine:
    """A machine of so many GPUs with so many NVLinks between pairs of them."""
    path = [["SELF"] * size for _ in range(size)]
    for i, (a, b) in enumerate(combinations(range(size), 2)):
        path[a][b] = path[b][a] = words[i] if words else "NODE"
    return Machine(
        node="n1",
        model="v100",
        gpus=tuple(Gpu(position=i, minor=i, uuid=f"GPU-{i}", cpus="0-7") for i in range(size)),
        links=tuple(Link(a, b, count, count * speed) for (a, b), count in counts.items() if count),
        paths=cast("tuple[tuple[PathWord, ...], ...]", tuple(map(tuple, path))),
    )
