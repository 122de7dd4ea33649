"""The segment's text of the splits of a job: the numbers of nodes on which it may lie (policy/request/splits.py).

>>> [(split.nodes, split.mem) for split in parse("1:8000,2:4000")]
[(1, 8000), (2, 4000)]
"""

from collections.abc import Mapping
from typing import NamedTuple

from policy.formats.errors import FormatError

KEY = "splits"
"""The segment's key for the splits that a job may have."""


class Split(NamedTuple):
    """A number of nodes, and the MB that each of them must give; None means all of the node."""

    nodes: int
    mem: int | None


def parse(value: str) -> tuple[Split, ...]:
    """Reads the segment's value."""
    found = []
    for word in filter(None, value.split(",")):
        nodes, _, mem = word.partition(":")
        if not (nodes.isascii() and nodes.isdigit() and int(nodes)) or (mem and not (mem.isascii() and mem.isdigit())):
            raise FormatError(f"{word!r} is no split such as 2:4000")
        found.append(Split(int(nodes), int(mem) if mem else None))
    return tuple(found)


def on(values: Mapping[str, str], nodes: int) -> dict[str, str]:
    """Returns the segment's values that change with the number of nodes; empty for a job that may not be split."""
    split = next((one for one in parse(values.get(KEY, "")) if one.nodes == nodes), None)
    if split is None:
        return {}
    gpus = int(values["n"]) * int(values["k"])
    return {
        "n": str(nodes),
        "k": str(gpus // nodes),
        **({} if split.mem is None else {"mem": str(split.mem)}),
    }
