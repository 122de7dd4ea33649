# SPDX-License-Identifier: Apache-2.0
"""The policies `random` and `pinned-random`: controls, which show the value of any deliberate choice."""

from random import Random

import numpy as np

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.published.common import gpus, same_on_each, sets_of, spread, usable
from policy.request.demand import ANY_SPREAD, Demand
from topology.sets.wiring import positions

SEED = 42
"""The seed of PAL's artifact."""


class RandomPolicy(Policy):
    """Draws free GPUs, all with the same probability; published as Random-Sticky and Random-Non-Sticky.

    Each draw depends on the draws before it, so this policy, unlike all others, answers a repeated question
    differently.
    """

    name = "random"

    def __init__(self, *, seed: int = SEED, draw: Random | None = None) -> None:
        """Uses the generator `draw`, or a new one with this seed."""
        self._draw = draw or Random(seed)  # noqa: S311 - a control in experiments, not a secret

    def place(self, demand: Demand, view: View) -> Berth:
        """Draws a berth at random."""
        return draw_berth(demand, view, self._draw)


class PinnedRandomPolicy(Policy):
    """Draws GPUs that depend only on the seed, the demand and what is free.

    With the same order of jobs as another policy, it shows the value of that policy's choice of GPUs. It answers a
    repeated question the same, so its berths can be pinned, planned ahead and replayed.
    """

    name = "pinned-random"

    def __init__(self, *, seed: int = SEED) -> None:
        self.seed = seed

    def place(self, demand: Demand, view: View) -> Berth:
        """Draws a berth; the same question gives the same one."""
        question = f"{self.seed} {demand.n} {demand.k} ".encode() + usable(demand, view).tobytes()
        return draw_berth(demand, view, Random(question))  # noqa: S311 - a control, not a secret


def draw_berth(demand: Demand, view: View, draw: Random) -> Berth:
    """Draws free GPUs in the number and form that the demand requests."""
    free = usable(demand, view)
    masks: dict[int, int] = {}
    if demand.n == ANY_SPREAD:
        everything = [(node, place) for node in np.flatnonzero(free).tolist() for place in positions(int(free[node]))]
        if len(everything) < demand.k:
            raise NotNow(f"fewer than {gpus(demand.k)} are free", 300)
        for node, place in draw.sample(everything, demand.k):
            masks[node] = masks.get(node, 0) | 1 << place
    else:
        drawn = np.random.default_rng(draw.getrandbits(64))
        sets = drawn.permutation(sets_of(int(view.fleet.size.max()), demand.k))
        found = same_on_each(demand.n, demand.k, free, drawn.random(free.size), sets)
        if found is None:
            raise NotNow(f"no {demand.n} nodes have the same {gpus(demand.k)} free", 300)
        masks = dict.fromkeys(found[0], found[1])
    return spread(demand, view, masks, "drawn at random")
