"""`random` and `pinned-random`: controls that show what any choice at all is worth."""

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy, positions
from policy.placement.published.common import gpus, same_on_each, sets_of, spread, usable
from policy.request.demand import ANY_SPREAD

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.request.demand import Demand

SEED = 42
"""That of PAL's artifact."""


class RandomPolicy(Policy):
    """Any free GPUs with the same probability; published as Random-Sticky and Random-Non-Sticky.

    Its draws follow each other: this policy alone gives other berths when it is asked again.
    """

    name = "random"

    def __init__(self, *, sticky: bool = True, seed: int = SEED, draw: Random | None = None) -> None:
        """Draw from `draw`, or from a generator of one's own with this seed."""
        self.sticky = sticky
        self._draw = draw or Random(seed)  # noqa: S311 - a control in experiments, not a secret

    def place(self, demand: "Demand", view: "View") -> Berth:
        """Draw."""
        return draw_berth(demand, view, self._draw)


class PinnedRandomPolicy(Policy):
    """Random places that depend on nothing but the seed, the demand and what is free.

    With an order of jobs that other policies have too, it shows what their choice of GPUs is worth. Asked again it
    answers the same, so it can be pinned, planned ahead and replayed.
    """

    name = "pinned-random"
    steady = True

    def __init__(self, *, sticky: bool = True, seed: int = SEED) -> None:
        self.sticky = sticky
        self.seed = seed

    def place(self, demand: "Demand", view: "View") -> Berth:
        """Draw, the same for the same question."""
        question = f"{self.seed} {demand.n} {demand.k} ".encode() + usable(demand, view).tobytes()
        return draw_berth(demand, view, Random(question))  # noqa: S311 - a control, not a secret


def draw_berth(demand: "Demand", view: "View", draw: Random) -> Berth:
    """Any free GPUs of the form that is asked for."""
    free = usable(demand, view)
    masks: dict[int, int] = {}
    if demand.n == ANY_SPREAD:
        everything = [(node, place) for node in np.flatnonzero(free).tolist() for place in positions(int(free[node]))]
        if len(everything) < demand.k:
            raise NotNow(f"fewer than {gpus(demand.k)} are free")
        for node, place in draw.sample(everything, demand.k):
            masks[node] = masks.get(node, 0) | 1 << place
    else:
        drawn = np.random.default_rng(draw.getrandbits(64))
        sets = drawn.permutation(sets_of(int(view.fleet.size.max()), demand.k))
        found = same_on_each(demand.n, demand.k, free, drawn.random(free.size), sets)
        if found is None:
            raise NotNow(f"no {demand.n} nodes have the same {gpus(demand.k)} free")
        masks = dict.fromkeys(found[0], found[1])
    return spread(demand, view, masks, "drawn at random")
