"""Hypothesis strategies that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import cast

from hypothesis import strategies as st

from topology.model import NEAR, Gpu, Link, Machine, PathWord

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
