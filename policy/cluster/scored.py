# SPDX-License-Identifier: Apache-2.0
"""Lays a score table over a fleet."""

from collections.abc import Iterable

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from topology.scores import Score


def scores_on(fleet: Fleet, scores: Iterable[Score]) -> dict[str, Floats]:
    """Returns the scores of each class, rows are nodes and columns positions; a GPU without one counts as typical.

    The UUID says which GPU is meant: one that was changed for another begins anew.
    """
    where = {
        gpu.uuid: (place, gpu.position)
        for place, machine in enumerate(fleet.machines)
        if machine is not None
        for gpu in machine.gpus
    }
    tables: dict[str, Floats] = {}
    width = int(fleet.size.max(initial=0))
    for score in scores:
        if score.uuid:
            found = where.get(score.uuid)
        else:
            found = (fleet.index[score.node], score.position) if score.node in fleet.index else None
        if found is not None and found[1] < width:
            table = tables.setdefault(score.app_class, np.ones((len(fleet.names), width)))
            table[found] = score.score
    return tables
