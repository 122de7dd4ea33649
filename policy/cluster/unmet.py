# SPDX-License-Identifier: Apache-2.0
"""Says why no node could ever hold what a job asks for."""

from collections.abc import Sequence

import numpy as np

from policy.cluster.allowed import Allowed
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import pools
from policy.formats.arrays import Bools
from policy.formats.errors import Impossible, LeftToSlurm
from policy.request.demand import Demand, Size
from policy.request.submission import Request


def explain_the_impossible(request: Request, fleet: Fleet, names: Sequence[str], may_use: Allowed, k: int) -> None:
    """Raises if no node has a named feature, or `k` GPUs: Slurm's own message would not name the cause.

    This does not refuse the job: Berth may not see a powered-down node, and a booting node may have other features.
    """
    allowed, largest = may_use.nodes, may_use.most
    if not largest:
        _explain_missing_features(request, fleet, names)
        return
    if request.total is not None and request.nodes is None and int(fleet.gpu_counts[allowed].sum()) >= request.total:
        return
    models = set(request.features) & _models(fleet, allowed)
    what = f"{k} {models.pop()} GPUs" if len(models) == 1 else f"{k} GPUs"
    raise Impossible(f"no node of partition {','.join(names)} holds {what}; the largest has {largest}", 222)


def _explain_missing_features(request: Request, fleet: Fleet, names: Sequence[str]) -> None:
    """Raises if no node, or none of these partitions, has one of the features."""
    nothing = np.zeros(len(fleet.names), np.bool_)
    inside = np.logical_or.reduce([nothing, *pools(fleet, names, 1)])
    for feature in request.features:
        having = fleet.having(feature)
        if not having.any():
            everywhere = np.ones(len(fleet.names), np.bool_)
            raise Impossible(f"no node has the GPU model or feature {feature}{_models_in(fleet, everywhere)}", 221)
        if not (having & inside).any():
            where = f"partition {','.join(names)}"
            raise Impossible(
                f"no node of {where} has the GPU model or feature {feature}{_models_in(fleet, inside)}", 221
            )


MOST_MODELS = 8
"""Most GPU models that one message names."""


def _models(fleet: Fleet, nodes: Bools) -> set[str]:
    """Returns the GPU models on some nodes that users can ask for: those with a feature of that name."""
    found = (fleet.models_at(place) for place in np.flatnonzero(nodes).tolist())
    return {model for models in found for model in models if model in fleet.features}


def _models_in(fleet: Fleet, nodes: Bools) -> str:
    models = sorted(_models(fleet, nodes))
    more = f" and {len(models) - MOST_MODELS} more" if len(models) > MOST_MODELS else ""
    return f"; GPU models here: {', '.join(models[:MOST_MODELS])}{more}" if models else ""


def explain_without_pins(fleet: Fleet, allowed: Bools, partition: str) -> None:
    """Raises with the reason of the first allowed GPU node that cannot be placed on."""
    for place in np.flatnonzero(allowed & ~fleet.ready & (fleet.gpu_counts > 0)).tolist():
        raise LeftToSlurm(fleet.not_ready.get(place, f"partition {partition} has no placeable node"), 223)


def nothing_holds(request: Request, one: Size, partition: str) -> str:
    """Returns the reason why no nodes hold a job of this size."""
    needs = f"{one.k} GPU{'s' if one.k > 1 else ''}"
    if not request.whole_nodes:
        needs += f", {one.cpus} CPU{'' if one.cpus == 1 else 's'}"
    if one.mem:
        needs += f" and {one.mem} MB"
    if one.n > 1:
        return f"partition {partition} has no {one.n} nodes that each hold {needs}"
    constraint = " with what else was asked" if request.features or request.only or request.excluded else ""
    return f"no node of partition {partition}{constraint} holds {needs}"


def never_on_any_split(request: Request, demand: Demand, fleet: Fleet) -> str:
    """Returns why no machines could ever meet `--locality=nvlink` on any split; empty if some can."""
    fewest, *others = (_never_at_level(request, one, fleet) for one in demand.every_split)
    return fewest if all(others) else ""


def _never_at_level(request: Request, demand: Demand, fleet: Fleet) -> str:
    """Returns why no machine could ever meet `--locality=nvlink`, and what would work; empty if one can."""
    if demand.n > 1:
        if fleet.fabric.at("nvlink").most(np.flatnonzero(demand.candidates)) >= demand.n:
            return ""
        return (
            f"--locality=nvlink: no NVLink domain joins {demand.n} nodes that fit the job; "
            f"ask for GPUs of one node, or for --locality=node"
        )
    entries = (fleet.offset + fleet.full)[demand.candidates]
    for k in range(demand.k, 0, -1):
        if (fleet.tables.look_up(k, "nvlink", entries) >= 0).any():
            if k == demand.k:
                return ""
            break
    most = f"at most {k}: ask for {k} or fewer" if k > 1 else "none has NVLink: leave the flag out"
    where = f"partition {request.partition or fleet.default_partition}"
    return (
        f"--locality=nvlink: no node of {where} that fits the job joins {demand.k} GPUs pairwise by NVLink, {most}, "
        f"or ask for --locality=node"
    )
