# SPDX-License-Identifier: Apache-2.0
"""Places shares: beside other packed jobs or on a free GPU, so that the least room is left that no job can use.

An NVLink island is cut into only if nothing else fits. Among the other places, the one is taken that adds least to
the node's expected fragmentation (policy.cluster.shared.fragmentation). To join a GPU that is shared already mostly
lowers that.

If jobs have profiles, the speed that they would lose beside each other (policy.sharing.neighbours) is added; both
are in percent of a GPU. Places where one of the jobs would not keep its speed come last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster.shared.company import NOBODY_KNOWN, Company, Meeting
from policy.cluster.shared.fragmentation import DEFAULT, UsualJob
from policy.cluster.shared.shelves import ShelfRequest, Shelves
from policy.cluster.shared.tenants import PlannedTenant, Tenants
from policy.formats.errors import BadCompany, NotNow
from policy.placement.base import Berth, Policy
from policy.request.share import Share
from topology.sets.tables import Ints
from topology.sets.wiring import positions

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.formats.arrays import Bools, Floats
    from policy.request.demand import Demand

_BROKEN = 63
"""Largest number of islands that a set leaves unbroken; a code holds that number in the six bits above its low byte."""

_SETS_TRIED = 64
"""Sets of GPUs tried for a job on several nodes, each of which gives the same set; best linked sets first."""

_WHOLE = 100

_NO_BETTER = ", and no better company came free in time"

MOST_MET = 128
"""Places at which the jobs beside a share are compared; the cheapest places come first."""

ALIKE = 8
"""Step of costs, in percent of a GPU: places in one step are taken by node order, so jobs gather on the first nodes.

Smaller differences are noise of the distribution; to follow them spreads jobs over all nodes."""


@dataclass(frozen=True, slots=True)
class SharePlaces:
    """Places that fit, one per row: a node, a set of GPUs there, and whether the set is shared already."""

    nodes: Ints
    masks: Ints
    joins: "Bools"
    broken: Ints
    """Number of NVLink islands that each place cuts into."""

    def where(self, rows: "Bools") -> "SharePlaces":
        """Returns the places of some rows."""
        return SharePlaces(self.nodes[rows], self.masks[rows], self.joins[rows], self.broken[rows])


def told(neighbours: Company | None, share: Share, there: Tenants, mask: int, start: float, end: float) -> str:
    """Describes the predicted speeds of a job and of those that it joins, to end a sentence; empty if unknown."""
    met = neighbours.meeting(share, _met(there, mask, start, end)) if neighbours is not None else NOBODY_KNOWN
    if neighbours is None or not met.known:
        return ""
    return f"; {_speeds(met)}{'' if neighbours.bears(met) else _NO_BETTER}"


@dataclass(slots=True)
class _Company:
    """The jobs that a share would join at each place; computed on demand."""

    neighbours: Company
    share: Share
    found: SharePlaces
    tenants: Mapping[int, Tenants]
    start: float
    end: float
    known: dict[int, Meeting] = field(default_factory=dict)
    passed_over: int = 0
    """Number of cheaper places that were left out because of the jobs there."""

    def at(self, row: int) -> Meeting:
        """Returns the prediction for the share at the place in this row."""
        if not self.found.joins[row]:
            return NOBODY_KNOWN
        if row not in self.known:
            there, mask = self.tenants[int(self.found.nodes[row])], int(self.found.masks[row])
            self.known[row] = self.neighbours.meeting(self.share, _met(there, mask, self.start, self.end))
        return self.known[row]

    def bears(self, row: int) -> bool:
        """Tells whether all jobs keep their speed at the place in this row."""
        return self.neighbours.bears(self.at(row))


def place(
    demand: "Demand",
    view: "View",
    tenants: Mapping[int, Tenants],
    start: float,
    shapes: Sequence[UsualJob],
    neighbours: Company | None = None,
    shelves: Shelves | None = None,
) -> Berth:
    """Returns the best place for a packed job from `start` on, or raises `NotNow`; `shelves` is a cache."""
    share = demand.share
    assert share is not None, "whole GPUs are the policies' own question"  # noqa: S101 - narrows the type
    shelves = shelves or Shelves()
    shelves.bring(tenants)
    found = _candidates(demand, share, view, shelves, start)
    if demand.n > 1:
        found = _on_enough_nodes(found, demand.n)
    if not found.nodes.size:
        raise NotNow(_nothing(demand, share), 304)
    company = None
    if neighbours is not None and found.joins.any():
        company = _Company(neighbours, share, found, tenants, start, start + demand.limit)
        if demand.n > 1 and (found := _in_good_company(found, company, demand.n)) is not company.found:
            company.found, company.known = found, {}
    else:
        found = found.where(found.broken == found.broken.min())
    added = _added(demand, share, view, shelves, start, found, tuple(shapes or DEFAULT))
    order = _cheapest_first(added, found, view, all_of_them=demand.n > 1 or company is not None)
    if demand.n > 1:
        order = _cheapest_set(order, added, found, demand.n)
    elif company is not None:
        order = np.array([_cheapest_with(company, order, added)])
    chosen = order[: demand.n]
    first = int(chosen[0])
    nodes, mask = sorted(found.nodes[chosen].tolist()), int(found.masks[first])
    percent = share.counted(view.fleet.gpu_mem_for_shares(int(found.nodes[first])))
    why = _reasons(found, first, percent, tenants, start, company)
    return Policy.berth(demand, view, nodes, positions(mask), why)


def bears(neighbours: Company | None, share: Share, there: Tenants, mask: int, start: float, end: float) -> bool:
    """Tells whether a job may join those on some GPUs: a picky one only if all keep their speed, others always."""
    if neighbours is None or not share.picky:
        return True
    return neighbours.bears(neighbours.meeting(share, _met(there, mask, start, end)))


def _cheapest_first(added: "Floats", found: SharePlaces, view: "View", *, all_of_them: bool = False) -> Ints:
    """Returns the rows, cheapest first: all of them, or only those of the cheapest step."""
    step = np.floor(added / ALIKE)
    rows = np.arange(step.size) if all_of_them else np.flatnonzero(step == step.min())
    nodes = found.nodes[rows]
    return rows[np.lexsort((added[rows], nodes, ~view.quiet[nodes], step[rows], found.broken[rows]))]


def _met(there: Iterable[PlannedTenant], mask: int, start: float, end: float) -> list[PlannedTenant]:
    return [tenant for tenant in there if tenant.mask == mask and tenant.start < end and tenant.end > start]


def _cheapest_with(company: _Company, order: Ints, added: "Floats") -> int:
    """Returns the row that costs least when the speed lost by sharing is counted too.

    Rows come in the order of the fragmentation that they add. Sharing only raises the cost, so few rows must be
    compared.
    """
    found, best, worst = company.found, -1, -1
    price = (0, 0.0)
    for row in order.tolist():
        step = int(found.broken[row]), float(np.floor(added[row] / ALIKE))
        if best >= 0 and step >= price:
            break
        if len(company.known) >= MOST_MET and found.joins[row]:
            continue
        if not company.bears(row):
            company.passed_over += best < 0
            if worst < 0 or company.at(row).lost < company.at(worst).lost:
                worst = row
            continue
        whole = step[0], float(np.floor((added[row] + company.at(row).lost) / ALIKE))
        if best < 0 or whole < price:
            best, price = row, whole
    if best < 0 and (worst < 0 or company.share.picky):
        raise BadCompany(_bad_company(company), 305)
    return best if best >= 0 else worst


def _added(
    demand: "Demand",
    share: Share,
    view: "View",
    shelves: Shelves,
    start: float,
    found: SharePlaces,
    shapes: tuple[UsualJob, ...],
) -> "Floats":
    """Returns how much each place would add to the expected fragmentation of its node, in percent of a GPU."""
    # Nodes of several models are compared by what the share counts on the largest GPUs: it fits everywhere then.
    percent = share.counted(max(map(view.fleet.gpu_mem_for_shares, np.unique(found.nodes).tolist())))
    asked = ShelfRequest(demand.k, percent, demand.cpus or 0, shapes)
    return shelves.added(asked, view, found.nodes, np.where(found.joins, found.masks, 0), start)


def _in_good_company(found: SharePlaces, company: _Company, n: int) -> SharePlaces:
    """Returns the places where all jobs keep their speed, for a job on several nodes; all places if too few do."""
    rows = np.arange(found.nodes.size)
    looked = rows[found.joins][:MOST_MET].tolist()
    good = ~found.joins
    good[[row for row in looked if company.bears(row)]] = True
    better = _on_enough_nodes(found.where(good), n)
    if better.nodes.size:
        return better
    if company.share.picky:
        raise BadCompany(_bad_company(company), 305)
    return found


def _bad_company(company: _Company) -> str:
    percent, least = company.share.percent, company.neighbours.least
    return (
        f"{percent} % of GPUs are free only beside packed jobs with which it, or they, would not keep "
        f"{least:.2f} of the speed that each has with its share alone"
    )


def _candidates(demand: "Demand", share: Share, view: "View", shelves: Shelves, start: float) -> SharePlaces:
    """Returns all shared sets with room, and of free GPUs the best set per node, or the best sets for several nodes."""
    fleet, fits = view.fleet, Policy.fitting(demand, view)
    end = start + demand.limit
    capacity = np.maximum(0, fleet.gpu_mem - fleet.sharing.gpu_mem_reserve)
    nodes, masks = shelves.open_to(share, demand.k, fits, capacity, start, end)
    linked = fleet.tables.look_up(demand.k, demand.level, fleet.offset[nodes] + masks) >= 0
    nodes, masks = nodes[linked], masks[linked]
    opened = _opened(demand, view, fits)
    rows = len(nodes)
    return SharePlaces(
        np.concatenate([nodes, opened.nodes]),
        np.concatenate([masks, opened.masks]),
        np.arange(rows + opened.nodes.size) < rows,
        np.concatenate([np.zeros(rows, np.int64), opened.broken]),
    )


def _opened(demand: "Demand", view: "View", fits: "Bools") -> SharePlaces:
    """Returns sets of GPUs that no job holds."""
    fleet, tables = view.fleet, view.fleet.tables
    here = np.flatnonzero(fits)
    if demand.n == 1:
        entries = fleet.offset[here] + view.free[here]
        codes = tables.look_up(demand.k, demand.level, entries)
        able = codes >= 0
        picks = tables.row(demand.k, demand.level).picks[entries[able]]
        broken = _BROKEN - (codes[able] >> 8 & _BROKEN)
        return SharePlaces(here[able], picks, np.zeros(picks.size, np.bool_), broken)
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
    return SharePlaces(all_nodes, all_masks, nothing > 0, nothing)


def _on_enough_nodes(found: SharePlaces, n: int) -> SharePlaces:
    """Returns the places whose set of GPUs fits on at least n nodes: a typed request is the same on each node."""
    _, inverse, counts = np.unique(found.masks, return_inverse=True, return_counts=True)
    return found.where(counts[inverse] >= n)


def _cheapest_set(order: Ints, added: "Floats", found: SharePlaces, n: int) -> Ints:
    """Returns the rows of the set of GPUs that costs least on its n best nodes."""
    best: tuple[float, Ints] | None = None
    for mask in np.unique(found.masks).tolist():
        rows = order[found.masks[order] == mask][:n]
        cost = float(added[rows].sum())
        if best is None or cost < best[0]:
            best = cost, rows
    assert best is not None, "there are candidates"  # noqa: S101 - narrows the type
    return best[1]


def _reasons(
    found: SharePlaces,
    row: int,
    percent: int,
    tenants: Mapping[int, Tenants],
    start: float,
    company: _Company | None = None,
) -> str:
    of = f"of {found.nodes.size} places that fit{_passed_over(company)}"
    if not found.joins[row]:
        return f"on a GPU that no job uses; it leaves the least room that no job can use, {of}"
    node, mask = int(found.nodes[row]), int(found.masks[row])
    here = [tenant for tenant in tenants[node] if tenant.mask == mask and tenant.there(start)]
    left = _WHOLE - sum(tenant.percent for tenant in here) - percent
    others = f"{len(here)} other packed job{'s' if len(here) > 1 else ''}"
    beside = f"beside {others}, {left} % stay free"
    if company is not None and (met := company.at(row)).known:
        beside += f"; {_speeds(met)}{'' if company.bears(row) else _NO_BETTER}"
        return f"{beside}; with what they lose by that it costs least, {of}"
    return f"{beside}; it leaves the least room that no job can use, {of}"


def _speeds(met: Meeting) -> str:
    both = f"it {met.own:.2f}, the slowest of them {met.theirs:.2f}"
    return f"predicted speeds: {both} of what each has with its share alone"


def _passed_over(company: _Company | None) -> str:
    if company is None or not company.passed_over:
        return ""
    places = f"{company.passed_over} place{'s' if company.passed_over > 1 else ''}"
    return f", of which {places} passed over: it, or those there, would not keep {company.neighbours.least:.2f} there"


def _nothing(demand: "Demand", share: Share) -> str:
    gpus = "a GPU" if demand.k == 1 else f"{demand.k} GPUs"
    where = "no node has" if demand.n == 1 else f"no {demand.n} nodes have the same"
    memory = "" if share.gpu_mem is None else f" and {share.gpu_mem} MiB"
    return f"{where} {gpus} with {share.percent} %{memory} to share now"
