"""Where a share goes: beside other packed jobs or on a free GPU, so that the least room is left that nobody can use.

An NVLink island is cut into only where nothing else fits. Among the rest the place is taken that adds least to the
node's expected fragmentation (policy.sharing.fragmentation); joining a GPU that is shared already mostly lowers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policy.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.tables import Ints, positions
from policy.sharing.fragmentation import DEFAULT, Shape, stranded
from policy.sharing.tenants import Share, Tenants

if TYPE_CHECKING:
    from policy.cluster import Bools, Floats, View
    from policy.demand import Demand

_BROKEN = 63
"""A code holds how many islands its set leaves unbroken, of so many at most, in the six bits above its low byte."""

_SETS_TRIED = 64
"""Sets looked at for a job on several nodes, which all have to give the same; the best linked ones come first."""

_WHOLE = 100

ALIKE = 4
"""Percent of a GPU: places whose costs are nearer than this go by the nodes' order, so that jobs gather on the first
nodes. Smaller differences are noise of the distribution, and following them spreads jobs over all nodes."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Places that fit, one a row: a node, a set of GPUs there, and whether the set is shared already."""

    nodes: Ints
    masks: Ints
    joins: "Bools"
    broken: Ints
    """NVLink islands that it cuts into."""

    def where(self, rows: "Bools") -> "Candidates":
        """Some of them."""
        return Candidates(self.nodes[rows], self.masks[rows], self.joins[rows], self.broken[rows])


def place(
    demand: "Demand", view: "View", tenants: Mapping[int, Tenants], start: float, shapes: Sequence[Shape]
) -> Berth:
    """The best place for a packed job from `start` on, or `NotNow`."""
    share = demand.share
    assert share is not None, "whole GPUs are the policies' own question"  # noqa: S101 - narrows the type
    found = _candidates(demand, share, view, tenants, start)
    if demand.n > 1:
        found = _on_enough_nodes(found, demand.n)
    if not found.nodes.size:
        raise NotNow(_nothing(demand, share))
    found = found.where(found.broken == found.broken.min())
    added = added_fragmentation(demand, share, view, tenants, start, found, shapes or DEFAULT)
    order = _cheapest_first(added, found, view)
    if demand.n > 1:
        order = _cheapest_set(order, added, found, demand.n)
    chosen = order[: demand.n]
    first = int(chosen[0])
    nodes, mask = sorted(found.nodes[chosen].tolist()), int(found.masks[first])
    why = _reasons(found, first, share, tenants, start)
    return Policy.berth(demand, view, nodes, positions(mask), why)


def place_whole(
    demand: "Demand", view: "View", tenants: Mapping[int, Tenants], start: float, shapes: Sequence[Shape]
) -> Berth:
    """The place for whole GPUs of one node that strands least, among the best linked sets; or `NotNow`.

    For fleets without scores of single GPUs: it does not look at them.
    """
    found = _opened(demand, view, Policy.fitting(demand, view))
    if demand.n != 1 or not found.nodes.size:
        raise NotNow(f"no node has {demand.k} free GPU{'s' if demand.k > 1 else ''} for this job now")
    found = found.where(found.broken == found.broken.min())
    added = added_fragmentation(demand, Share(_WHOLE), view, tenants, start, found, shapes or DEFAULT)
    first = int(_cheapest_first(added, found, view)[0])
    why = f"it leaves the least room that nobody can use, of {found.nodes.size} nodes that fit alike"
    return Policy.berth(demand, view, [int(found.nodes[first])], positions(int(found.masks[first])), why)


def _cheapest_first(added: "Floats", found: Candidates, view: "View") -> Ints:
    return np.lexsort((added, found.nodes, ~view.quiet[found.nodes], np.floor(added / ALIKE)))


def _candidates(
    demand: "Demand", share: Share, view: "View", tenants: Mapping[int, Tenants], start: float
) -> Candidates:
    """All shared sets with room; of free GPUs the best set of each node, or for several nodes each of the best."""
    fleet, fits = view.fleet, Policy.fitting(demand, view)
    end = start + demand.limit
    joined = [
        (node, mask)
        for node, there in tenants.items()
        # Most nodes are full: what is left of a GPU is known, and looked at before its tenants one by one.
        if fits[node] and share.party in there.sets and max(there.left(start).values(), default=0) >= share.percent
        for mask in there.open_to(share, demand.k, fleet.gpu_mem_for_shares(node), start, end)
    ]
    nodes, masks = (np.array(joined, np.int64).reshape(-1, 2)).T
    linked = fleet.tables.look_up(demand.k, demand.level, fleet.offset[nodes] + masks) >= 0
    nodes, masks = nodes[linked], masks[linked]
    opened = _opened(demand, view, fits)
    rows = len(nodes)
    return Candidates(
        np.concatenate([nodes, opened.nodes]),
        np.concatenate([masks, opened.masks]),
        np.arange(rows + opened.nodes.size) < rows,
        np.concatenate([np.zeros(rows, np.int64), opened.broken]),
    )


def _opened(demand: "Demand", view: "View", fits: "Bools") -> Candidates:
    """Sets of GPUs that nobody holds."""
    fleet, tables = view.fleet, view.fleet.tables
    here = np.flatnonzero(fits)
    if demand.n == 1:
        entries = fleet.offset[here] + view.free[here]
        codes = tables.look_up(demand.k, demand.level, entries)
        able = codes >= 0
        picks = tables.row(demand.k, demand.level).picks[entries[able]]
        broken = _BROKEN - (codes[able] >> 8 & _BROKEN)
        return Candidates(here[able], picks, np.zeros(picks.size, np.bool_), broken)
    kinds = [here[fleet.offset[here] == offset] for offset in np.unique(fleet.offset[here]).tolist()]
    nodes, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for kind in kinds:
        machine = fleet.machines[int(kind[0])]
        for mask in tables.ranked(machine, demand.k)[:_SETS_TRIED].tolist() if machine else ():
            having = kind[view.free[kind] & mask == mask]
            nodes.append(having)
            masks.append(np.full(having.size, mask, np.int64))
    all_nodes, all_masks = np.concatenate(nodes), np.concatenate(masks)
    nothing = np.zeros(all_nodes.size, np.int64)
    return Candidates(all_nodes, all_masks, nothing > 0, nothing)


def added_fragmentation(
    demand: "Demand",
    share: Share,
    view: "View",
    tenants: Mapping[int, Tenants],
    start: float,
    found: Candidates,
    shapes: Sequence[Shape],
) -> "Floats":
    """By how much each place would add to the expected fragmentation of its node, in percent of a GPU."""
    left = {node: tenants[node].left(start) for node in found.nodes.tolist() if node in tenants}
    width = max(map(len, left.values()), default=0)
    free = np.bitwise_count(view.free[found.nodes]).astype(np.int64)
    before = np.zeros((found.nodes.size, width + demand.k), np.int64)
    after = before.copy()
    if width:
        nothing = [0] * (width + demand.k)
        parts = {node: [*some.values(), *nothing[len(some) :]] for node, some in left.items()}
        before[:] = [parts.get(node, nothing) for node in found.nodes.tolist()]
        after[:] = before
        for row in np.flatnonzero(found.joins).tolist():
            columns = list(left[int(found.nodes[row])])
            for gpu in positions(int(found.masks[row])):
                after[row, columns.index(gpu)] -= share.percent
    opens = ~found.joins
    after[opens, width:] = _WHOLE - share.percent
    cpus = view.cpus[found.nodes]
    then: Floats = stranded(free - demand.k * opens, after, cpus - (demand.cpus or 0), shapes)
    return then - stranded(free, before, cpus, shapes)


def _on_enough_nodes(found: Candidates, n: int) -> Candidates:
    """A typed request is the same on each node: sets that too few nodes have are none."""
    _, inverse, counts = np.unique(found.masks, return_inverse=True, return_counts=True)
    return found.where(counts[inverse] >= n)


def _cheapest_set(order: Ints, added: "Floats", found: Candidates, n: int) -> Ints:
    """The rows of the set that costs least on its n best nodes."""
    best: tuple[float, Ints] | None = None
    for mask in np.unique(found.masks).tolist():
        rows = order[found.masks[order] == mask][:n]
        cost = float(added[rows].sum())
        if best is None or cost < best[0]:
            best = cost, rows
    assert best is not None, "there are candidates"  # noqa: S101 - narrows the type
    return best[1]


def _reasons(found: Candidates, row: int, share: Share, tenants: Mapping[int, Tenants], start: float) -> str:
    of = f"of {found.nodes.size} places that fit"
    if not found.joins[row]:
        return f"on a GPU that nobody uses; it leaves the least room that nobody can use, {of}"
    node, mask = int(found.nodes[row]), int(found.masks[row])
    here = [tenant for tenant in tenants[node] if tenant.mask == mask and tenant.there(start)]
    left = _WHOLE - sum(tenant.percent for tenant in here) - share.percent
    others = f"{len(here)} other packed job{'s' if len(here) > 1 else ''}"
    return f"beside {others}, {left} % stay free; it leaves the least room that nobody can use, {of}"


def _nothing(demand: "Demand", share: Share) -> str:
    gpus = "a GPU" if demand.k == 1 else f"{demand.k} GPUs"
    where = "no node has" if demand.n == 1 else f"no {demand.n} nodes have the same"
    memory = "" if share.gpu_mem is None else f" and {share.gpu_mem} MiB"
    return f"{where} {gpus} with {share.percent} %{memory} to share now"
