# SPDX-License-Identifier: Apache-2.0
"""Estimates what Berth could gain on a cluster: upper bounds, each with what it counts."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import hypot, sqrt
from typing import Any

from policy.report.counts.use import LOW


@dataclass(frozen=True, slots=True)
class Stake:
    """The most that one remedy could gain."""

    name: str
    value: float
    unit: str
    remedy: str
    counts: str
    """A text for people: what was counted."""
    spread: float = 0.0
    """Standard deviation of the value, by the runs that were counted; 0 where it is not of runs."""


def worth(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the stakes above 0."""
    return [asdict(stake) for stake in _stakes(found) if stake.value > 0]


def _stakes(found: Mapping[str, Any]) -> Iterator[Stake]:
    runs, gpu_hours, spread = (found["places"][key] for key in ("runs", "gpu_hours", "spread_hours"))
    more, asked = "more_nodes", "more_nodes_asked"
    yield Stake(
        "locality_nodes",
        round(gpu_hours.get(more, 0.0) - gpu_hours.get(asked, 0.0), 2),
        "GPU h",
        "--locality=node",
        f"{runs.get(more, 0) - runs.get(asked, 0)} of {runs.get('runs', 0)} runs on several GPUs "
        "were spread over more nodes than they needed or asked for",
        sqrt(max(0.0, spread.get(more, 0.0) ** 2 - spread.get(asked, 0.0) ** 2)),
    )
    for level, name in (("nvlink", "NVLink domains"), ("leaf", "leaves")):
        key = f"more_{level}"
        yield Stake(
            f"locality_{level}",
            gpu_hours.get(key, 0.0),
            "GPU h",
            f"--locality={level}",
            f"{runs.get(key, 0)} of {runs.get(f'several_nodes_{level}_known', 0)} runs on several nodes "
            f"lay in more {name} than they needed",
            spread.get(key, 0.0),
        )
    yield Stake(
        "waits_beside_idle",
        round(sum(one["enough_idle_hours"] for one in found["waits"].values()), 2),
        "h of waiting",
        "berthd's plan",
        "jobs waited without a known reason while as many GPUs were idle as they asked for; a part of that is Slurm's "
        "order, nodes that were down, and CPUs or memory",
    )
    early, same, new = found["early"], found["tries"]["failed_alike"], found["tries"]["resubmitted_alike"]
    yield Stake(
        "useless_tries",
        round(same["gpu_hours"] + new["gpu_hours"], 2),
        "GPU h",
        "berth classify",
        f"{same['runs']} tries of the same job, and {new['runs']} jobs submitted soon after one of the same owner and "
        "size, failed again of what another try does not change",
        hypot(same["spread_hours"], new["spread_hours"]),
    )
    yield Stake(
        "preflight",
        early["gpu_hours"],
        "GPU h",
        "a first run on one GPU",
        f"{early['runs']} runs on several GPUs failed within 10 minutes, and not of their place: on one GPU first, "
        "this much less would have been lost",
        early["spread_hours"],
    )
    yield Stake(
        "guests",
        found["use"]["low_gpu_hours"],
        "GPU h",
        "--gpu-tier, --gpu-share",
        f"held by {found['use']['low_runs']} jobs that kept their GPUs less than {LOW:.0%} busy",
        found["use"]["low_spread_hours"],
    )
