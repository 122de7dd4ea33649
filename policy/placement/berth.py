# SPDX-License-Identifier: Apache-2.0
"""Berth's own policy: the exact best set on the best node, or the best set that several nodes have free."""

from dataclasses import replace
from math import comb
from typing import NamedTuple

import numpy as np

from policy.cluster.cost import NEIGHBOURS
from policy.cluster.fleet import Fleet
from policy.cluster.shared.fragmentation import without_cpus
from policy.cluster.view import View
from policy.formats.arrays import Bools, Floats
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy, links
from policy.placement.gang import LEVELS_OF_NODES, Gang, choose, nearness
from policy.placement.speed import alike, fast_enough, least_score
from policy.placement.too_slow import Bound, bounds, worthwhile
from policy.request.demand import ANY_SPREAD, Demand
from topology.sets.tables import BROKEN_BITS, CUT, LINKS, MOST_TENTHS, NODE_BITS, Ints, cut_gbps
from topology.sets.wiring import positions

_MOST_LEFT = 127
"""Most free GPUs left over that the 7 upper bits of a code's low byte can count.

The last bit prefers nodes where no epilog runs.
"""


_MASKS_AT_ONCE = 70
"""Sets tried in one numpy step: all of four of eight GPUs. The best ones come first, so most requests need one step."""


_SETS_COMPARED = 4
"""Sets with equal links for which nodes are searched; they differ in which nearby, fast nodes have them free."""

KEPT_EMPTY = 0.05
"""Part of all nodes that stays empty for jobs that need whole nodes, whatever neighbours cost.

docs/results/placement-rules.md has the curve from which it is chosen."""

ALIKE_CPUS = 4
"""Step of GPUs without CPUs, in percent of a GPU; nodes in one step are compared by the GPUs left over."""

_MOST_BROKEN = (1 << BROKEN_BITS) - 1


class BerthPolicy(Policy):
    """Among GPU sets whose slowest score is within 2 % of the best, picks the one with the highest bandwidth.

    Bandwidth is compared by the weakest pair, then by the sum. Among equal sets it prefers the one that breaks the
    fewest islands, then the node that other jobs need least, then the fullest, then the slowest GPUs. The nodes of a
    gang are near each other (docs/research/placement.md).
    """

    name = "berth"
    weighs_scores = True
    gathers_pieces = True

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, int, int], tuple[Floats, list[Bound]]] = {}
        """Too slow nodes by class, nodes and GPUs on each, with the scores that tell so."""

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the best free set."""
        fits = self.fitting(demand, view)
        if demand.n > 1:
            return self._same_on_each(demand, view, fits)
        berth = self._one_node(demand, view, fits)
        apart = self._alone(demand, view, fits, berth) if view.fleet.costs.neighbours_count else None
        return apart or berth

    def worthwhile(self, demand: Demand, fleet: Fleet) -> Bools:
        """Marks the candidates whose GPUs are not too slow for such a job (policy/placement/too_slow.py)."""
        scores = fleet.scores.get(demand.app_class)
        if scores is None or demand.n == ANY_SPREAD or demand.gpus < 2 or demand.share is not None:
            return demand.candidates
        key = (demand.app_class, demand.n, demand.k)
        known = self._bounds.get(key)
        # The same array means the same scores, because tables are replaced and never changed.
        if known is None or known[0] is not scores:
            exists = np.arange(scores.shape[1]) < fleet.size[:, None]
            known = self._bounds[key] = scores, bounds(np.where(exists, scores, np.inf), demand.n, demand.k)
        return worthwhile(demand.candidates, fleet.size >= demand.k, demand.n, known[1])

    def _one_node(self, demand: Demand, view: View, fits: Bools) -> Berth:
        tables = view.fleet.tables
        fast = fast_enough(demand, view, fits) if view.fleet.scores else None
        offered = view.free if fast is None else fast[0]
        codes = tables.look_up(demand.k, demand.level, view.fleet.offset + offered)
        if demand.k == 1:
            spared = MOST_TENTHS - tables.peaks(view.fleet.offset + view.free)
            codes = np.where(codes >= 0, codes + (spared << CUT), codes)
        before = codes + ((_MOST_LEFT + demand.k) << 1) - (np.bitwise_count(view.free) << 1) + view.quiet
        values = np.where(fits & (codes >= 0), before, -1)
        links_and_islands = values >> NODE_BITS
        most = links_and_islands.max()
        if most < 0:
            raise NotNow(_nothing_free(demand), 300)
        best = (links_and_islands == most).nonzero()[0]
        kept, by_need = _least_needed(demand, view, best)
        node = _least_missed(demand, view, kept[_greatest(values[kept])])
        mask = int(tables.row(demand.k, demand.level).picks[view.fleet.offset[node] + offered[node]])
        why = self._reasons(view, values, node, mask, demand.k, equal=best.size, by_need=by_need)
        if fast is not None:
            why += f"; no score above {fast[1] * (1 + alike(view)):.2f}"
        return self.berth(demand, view, [node], positions(mask), why)

    def _alone(self, demand: Demand, view: View, fits: Bools, usual: Berth) -> Berth | None:
        """Returns the best place on a node without other jobs, if neighbours cost the job more than that place does.

        None also where few nodes are empty: they are kept for jobs that need whole nodes.
        """
        fleet = view.fleet
        factor = fleet.costs.locality(demand.model, demand.app_class, NEIGHBOURS, demand.gpus)
        empty = view.open & (fleet.size > 0) & (view.free == fleet.full)
        if empty[usual.nodes[0]] or np.count_nonzero(empty) <= KEPT_EMPTY * np.count_nonzero(fleet.size):
            return None
        try:
            berth = self._one_node(demand, view, fits & empty)
        except NotNow:
            return None
        if berth.cost >= usual.cost * factor:
            return None
        return replace(berth, why=f"{berth.why}; on an empty node, as neighbours cost {factor:g}")

    @staticmethod
    def _reasons(view: View, values: Ints, node: int, mask: int, k: int, *, equal: int, by_need: bool) -> str:
        able = int(np.count_nonzero(values >= 0))
        # The broken islands are the six bits above the node's byte; the links are above them.
        rivals = int(np.count_nonzero(values >> LINKS == values[node] >> LINKS)) - 1
        by = "bandwidth" if k > 1 else "links left to others"
        if able == 1:
            reason = "the only node that fits"
        elif not rivals:
            reason = f"best of {able} nodes that fit, by {by}"
        elif equal == 1:
            reason = f"best of {able} nodes that fit, {rivals + 1} equal in {by}, by islands kept whole"
        else:
            left = "CPUs and kinds" if by_need else "free GPUs"
            reason = f"best of {able} nodes that fit, {rivals + 1} equal in {by}, by {left} left over"
        kept = view.fleet.tables.islands_kept(int(view.fleet.offset[node]), int(view.free[node]), mask)
        broken = _MOST_BROKEN - (int(values[node]) >> NODE_BITS & _MOST_BROKEN)
        free = int(view.free[node]).bit_count()
        sets = f"best of {comb(free, k)} sets of its {free} free GPUs" if free > k else "all its free GPUs"
        return f"{reason}; {sets}; {_islands(kept, broken)}"

    def _same_on_each(self, demand: Demand, view: View, fits: Bools) -> Berth:
        """Finds a free set that several nodes have in common, because one typed request holds for all nodes.

        Machines of one kind are tried first.
        """
        fleet = view.fleet
        kinds = [np.flatnonzero(fits & (fleet.offset == offset)) for offset in np.unique(fleet.offset[fits]).tolist()]
        found = [choice for nodes in kinds if (choice := _common_set(demand, view, nodes))]
        of_kind = "of one kind "
        if not found and len(kinds) > 1:
            # The sets are ranked as for the most common kind.
            kinds.sort(key=lambda nodes: -nodes.size)
            of_kind = ""
            found = [choice for choice in [_common_set(demand, view, np.concatenate(kinds))] if choice]
        if not found:
            raise NotNow(_nothing_free(demand), 300)
        chosen = self._of_kinds(demand, view, found)
        why = (
            f"best set of {demand.k} GPUs that is free on {demand.n} nodes {of_kind}at once; "
            f"{chosen.having} nodes have it free{_NEAR.get(chosen.gang.level, '')}"
        )
        return self.berth(demand, view, chosen.gang.nodes, positions(chosen.mask), why)

    @staticmethod
    def _of_kinds(demand: Demand, view: View, found: list["_Common"]) -> "_Common":
        """Returns the cheapest gang; of those that cost alike the best linked, for single GPUs the worst linked."""
        fleet = view.fleet
        least = min(one.cost for one in found)
        alike_ones = [one for one in found if one.cost <= least * (1 + alike(view))]
        if demand.k > 1:
            return max(alike_ones, key=lambda one: (one.code, -one.cost))
        firsts = np.array([one.gang.nodes[0] for one in alike_ones])
        return alike_ones[int(fleet.tables.peaks(fleet.offset[firsts] + fleet.full[firsts]).argmin())]


_NEAR = {"nvlink": "; all in one NVLink domain", "leaf": "; all in one leaf", "pod": "; all in one pod"}


def _greatest(values: Ints | Floats) -> Bools:
    return np.asarray(values == values.max())


def _least_needed(demand: Demand, view: View, best: Ints) -> tuple[Ints, bool]:
    """Returns those of the best nodes, in links and islands, that other jobs need no more than this one.

    A wholly free node is kept for bigger jobs while a node of its kind in part use fits. Then CPUs decide: a job with
    few CPUs goes to a node that has few for each GPU. Then the kind of which the largest part of the GPUs is free, as
    other jobs may need one of the other kinds. Also tells whether CPUs or kinds decided; if not, the fullest node is
    taken.
    """
    if best.size == 1:
        return best, False
    kind, fleet = view.fleet.kind, view.fleet
    opens = (view.free[best] == fleet.full[best]) & (fleet.size[best] > demand.k)
    closed = best
    if 0 < np.count_nonzero(opens) < best.size:
        in_use = np.bincount(kind[best[~opens]], minlength=int(kind.max()) + 1) > 0
        closed = best[~(opens & in_use[kind[best]])]
    kept = _with_cpus_to_spare(demand, view, closed)
    if (kind[kept] != kind[kept[0]]).any():
        free = np.bincount(kind, np.bitwise_count(view.free)) / np.maximum(1, np.bincount(kind, fleet.size))
        kept = kept[_greatest(free[kind[kept]])]
    return kept, kept.size < closed.size


def _with_cpus_to_spare(demand: Demand, view: View, nodes: Ints) -> Ints:
    """Returns those of some nodes on which a job adds least to the GPUs that have no CPUs left."""
    if not view.cpus_per_gpu or demand.cpus is None:
        return nodes
    masks, cpus = view.free[nodes], view.cpus[nodes]
    if view.shared_left is None and bool((masks == masks[0]).all()) and bool((cpus == cpus[0]).all()):
        return nodes
    free = np.bitwise_count(masks).astype(np.int64)
    parts = np.zeros(nodes.size, np.int64) if view.shared_left is None else view.shared_left(nodes)
    after = without_cpus(free - demand.k, parts, cpus - demand.cpus, view.cpus_per_gpu)
    step = np.floor((after - without_cpus(free, parts, cpus, view.cpus_per_gpu)) / ALIKE_CPUS)
    return np.asarray(nodes[step == step.min()])


def _least_missed(demand: Demand, view: View, best: Ints) -> int:
    """Among the best nodes, picks one whose leaf has the fewest empty nodes; ties go to the slowest GPUs.

    Empty nodes of a leaf are kept for gangs. All these nodes are fast enough for the job.
    """
    if best.size > 1 and (leaves := view.fleet.fabric.at("leaf")).any:
        empty = leaves.known & view.open & (view.free == view.fleet.full)
        counts = np.bincount(leaves.of[empty], minlength=leaves.count + 1)
        room = np.where(leaves.known[best], counts[leaves.of[best]], 0)
        best = best[room == room.min()]
    table = view.fleet.scores.get(demand.app_class)
    return int(best[0] if table is None else best[table[best].mean(axis=1).argmax()])


def _islands(kept: int, broken: int) -> str:
    """Returns the text on how the set cuts into the other NVLink islands of its node."""
    whole = f"{kept} other NVLink island{'s' if kept > 1 else ''} kept whole"
    if not broken:
        return whole if kept else "no NVLink island cut into"
    return f"{whole}, {broken} cut into" if kept else f"{broken} NVLink island{'s' if broken > 1 else ''} cut into"


class _Common(NamedTuple):
    """A set that several nodes have free, and the gang on it."""

    cost: float
    code: int
    """The code of the set without its islands, on the worst of the nodes."""
    gang: Gang
    mask: int
    having: int
    """The number of nodes that have it free."""


def _common_set(demand: Demand, view: View, nodes: Ints) -> _Common | None:
    """Finds the set that enough of these nodes have free and whose gang costs least; a tie goes to the best links."""
    fleet = view.fleet
    nodes = nodes[np.bitwise_count(view.free[nodes]) >= demand.k]
    if nodes.size < demand.n:
        return None
    machine = fleet.machines[int(nodes[0])]
    assert machine is not None, "fitting nodes have a topology"  # noqa: S101 - narrows the type
    masks = fleet.tables.ranked(machine, demand.k)
    least, worth = least_score(demand, view, nodes), 1 - alike(view)
    best: _Common | None = None
    for start in range(0, masks.size, _MASKS_AT_ONCE):
        some = masks[start : start + _MASKS_AT_ONCE]
        has = (view.free[nodes, None] & some) == some
        enough = np.flatnonzero(has.sum(axis=0) >= demand.n)
        if enough.size and demand.level in _NEAR:
            near = nearness(demand.n, fleet.fabric, nodes, has[:, enough])
            enough = enough[near <= LEVELS_OF_NODES.index(demand.level)]
        codes = fleet.tables.look_up(demand.k, "node", fleet.offset[nodes[0]] + some[enough]) >> LINKS
        for code in np.unique(codes)[::-1].tolist():
            sets, of_links = enough[codes == code], least * links(fleet, demand.k, cut_gbps(code >> CUT - LINKS))
            if best is not None and of_links * _nearest(demand, view, nodes) >= best.cost * worth:
                return best
            if best is not None or sets.size > _SETS_COMPARED:
                near = nearness(demand.n, fleet.fabric, nodes, has[:, sets])
                if best is not None and of_links * _of_level(demand, fleet, int(near.min())) >= best.cost * worth:
                    continue
                sets = sets[np.argsort(near, kind="stable")][:_SETS_COMPARED]
            gangs = (_gang_on(demand, view, nodes[has[:, one]], int(some[one])) for one in sets.tolist())
            # The first of equals is the nearest to NICs.
            cheapest = max(filter(None, gangs), key=lambda one: (one.code, -one.cost), default=None)
            if cheapest is not None and (best is None or cheapest.cost < best.cost * worth):
                best = cheapest
    return best


def _nearest(demand: Demand, view: View, nodes: Ints) -> float:
    """Returns the factor of the nearest level at which n of these nodes meet, whatever is free."""
    near = nearness(demand.n, view.fleet.fabric, nodes, np.ones((nodes.size, 1), np.bool_))
    return _of_level(demand, view.fleet, int(near[0]))


def _of_level(demand: Demand, fleet: Fleet, place: int) -> float:
    return fleet.costs.locality(demand.model, demand.app_class, LEVELS_OF_NODES[place], demand.gpus)


def _gang_on(demand: Demand, view: View, having: Ints, mask: int) -> _Common | None:
    """Returns the best gang on nodes that have a set free."""
    gang = choose(demand, view, having, mask)
    if gang is None:
        return None
    fleet = view.fleet
    code = int(fleet.tables.look_up(demand.k, "node", fleet.offset[gang.nodes] + mask).min()) >> LINKS
    cost = gang.cost * links(fleet, demand.k, cut_gbps(code >> CUT - LINKS))
    return _Common(cost, code, gang, mask, having.size)


def _nothing_free(demand: Demand) -> str:
    gpus = f"{demand.k} free GPU{'s' if demand.k > 1 else ''}"
    joined = ", all pairs joined by NVLink" if demand.level == "nvlink" and demand.k > 1 else ""
    if demand.n > 1:
        return f"no {demand.n} nodes have the same {gpus}{joined}"
    return f"no node has {gpus}{joined}{',' if joined else ''} now"
