"""The text of the splits of a job in its plan: the numbers of nodes on which it may lie (policy/request/splits.py).

>>> [(split.nodes, split.mem) for split in parse("1:8000,2:4000")]
[(1, 8000), (2, 4000)]
"""

from collections.abc import Iterable
from typing import NamedTuple

from policy.formats.errors import FormatError


class Split(NamedTuple):
    """A number of nodes, and the MB that each of them must give; None means all of the node."""

    nodes: int
    mem: int | None


def parse(value: str) -> tuple[Split, ...]:
    """Reads the splits of a text."""
    found = []
    for word in filter(None, value.split(",")):
        nodes, _, mem = word.partition(":")
        if not (nodes.isascii() and nodes.isdigit() and int(nodes)) or (mem and not (mem.isascii() and mem.isdigit())):
            raise FormatError(f"{word!r} is no split such as 2:4000")
        found.append(Split(int(nodes), int(mem) if mem else None))
    return tuple(found)


def write(splits: Iterable[Split]) -> str:
    """Writes the splits as text."""
    return ",".join(f"{one.nodes}:{'' if one.mem is None else one.mem}" for one in splits)
