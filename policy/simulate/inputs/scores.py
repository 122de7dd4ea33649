# SPDX-License-Identifier: Apache-2.0
"""Converts score files to a fleet's form: a table of nodes x GPUs for each application class."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from policy.formats.arrays import Floats
from policy.formats.errors import FormatError
from policy.simulate.inputs.text import STDIN, InputTable, read_table
from policy.simulate.study import Way
from topology.model import Machine
from topology.scores import Score, load

T = TypeVar("T")


def grids(
    sources: Sequence[str], nodes: int, gpus: int, machines: Sequence[Machine] = (), way: Way = "nodes", seed: int = 0
) -> dict[str, Floats]:
    """Reads scores by class from `FILE`, a score table, or `CLASS=FILE`, measured runs; GPUs without a score have 1.

    `machines` are the nodes of a real cluster; a table finds their GPUs by UUID.
    """
    found: dict[str, Floats] = {}
    for source in sources:
        app_class, mark, path = source.partition("=")
        is_runs = bool(mark) and "/" not in app_class
        # Each class has its own draw, so that one more table changes no other.
        some = (
            {app_class: _drawn(read_table(path), nodes, gpus, way, random.Random(f"{seed}/{app_class}"))}  # noqa: S311
            if is_runs
            else _placed(source, nodes, gpus, machines)
        )
        for name, grid in some.items():
            if name in found:
                raise FormatError(f"{path if is_runs else source}: class {name} has scores from another file already")
            found[name] = grid
    return found


def _placed(source: str, nodes: int, gpus: int, machines: Sequence[Machine]) -> dict[str, Floats]:
    if source == STDIN:
        raise FormatError("scores are read from a file, not from standard input")
    table = load(source)
    place_of = _by_identity(machines) if machines else _in_order(table, source, nodes, gpus)
    found: dict[str, Floats] = {}
    for one in table:
        place = place_of(one)
        # A GPU that was replaced since takes its score along.
        if place is not None:
            found.setdefault(one.app_class, np.ones((nodes, gpus)))[place] = one.score
    if not found:
        raise FormatError(f"{source}: it has no score of any GPU of this cluster; give the table of these nodes")
    return found


PlaceOf = Callable[[Score], tuple[int, int] | None]
"""Returns the row and column of a score's GPU."""


def _by_identity(machines: Sequence[Machine]) -> PlaceOf:
    by_uuid = {gpu.uuid: (row, gpu.position) for row, machine in enumerate(machines) for gpu in machine.gpus}
    by_place = {(m.node, gpu.position): (row, gpu.position) for row, m in enumerate(machines) for gpu in m.gpus}
    return lambda one: by_uuid.get(one.uuid) if one.uuid else by_place.get((one.node, one.position))


def _in_order(table: Sequence[Score], source: str, nodes: int, gpus: int) -> PlaceOf:
    """Assigns a table's nodes by order, because the nodes of a drawn cluster have no names that a table could use."""
    rows = {name: row for row, name in enumerate(dict.fromkeys(one.node for one in table))}
    odd = next((one for one in table if one.position >= gpus), None)
    if odd or len(rows) != nodes:
        has = f"GPU {odd.position} of node {odd.node}" if odd else f"{len(rows)} nodes"
        raise FormatError(f"{source}: it has {has}, but the cluster has {nodes} nodes of {gpus} GPUs")
    return lambda one: (rows[one.node], one.position)


def _drawn(table: InputTable, nodes: int, gpus: int, way: Way, draw: random.Random) -> Floats:
    table.need("uuid", "perf")
    runs: dict[str, list[float]] = defaultdict(list)
    places: dict[str, str] = {}
    for row in table.rows:
        runs[row["uuid"]].append(row.number("perf", 1e-9))
        places[row["uuid"]] = f"{row.get('cabinet')}/{row.get('node')}"
    if not runs:
        raise FormatError(f"{table.source}: it has no run")
    every = [value for some in runs.values() for value in some]
    if way == "one-run":
        drawn = [draw.choice(every) for _ in range(nodes * gpus)]
    elif way == "median":
        medians = [median(some) for some in runs.values()]
        drawn = [value for value, _ in zip(_endless(medians, draw), range(nodes * gpus), strict=False)]
    else:
        drawn = _whole_nodes(runs, places, nodes, gpus, draw)
    return np.array(drawn).reshape(nodes, gpus) / median(every)


def _whole_nodes(
    runs: Mapping[str, Sequence[float]], places: Mapping[str, str], nodes: int, gpus: int, draw: random.Random
) -> list[float]:
    if len(set(places.values())) < 2:
        raise FormatError("these runs do not say which GPUs share a node; take profile_way = median")
    by_node: dict[str, list[float]] = defaultdict(list)
    for uuid in sorted(runs):
        by_node[places[uuid]].append(median(runs[uuid]))
    real = _endless(list(by_node.values()), draw)
    drawn: list[float] = []
    for _ in range(nodes):
        here: list[float] = []
        while len(here) < gpus:
            here += next(real)[: gpus - len(here)]
        drawn += here
    return drawn


def _endless(values: Sequence[T], draw: random.Random) -> Iterator[T]:
    """Yields each value once, in a drawn order; then all again."""
    while True:
        yield from draw.sample(values, len(values))
