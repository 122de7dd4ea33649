"""Estimates what Berth could gain on a cluster: upper bounds, each with what it counts."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
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
    runs: int = 0
    """Runs that were counted; 0 where it is not a number of runs."""


def worth(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the stakes above 0."""
    return [asdict(stake) for stake in _stakes(found) if stake.value > 0]


def _stakes(found: Mapping[str, Any]) -> Iterator[Stake]:
    runs, hours = found["places"]["runs"], found["places"]["gpu_hours"]
    yield Stake(
        "locality_nodes",
        round(hours.get("more_nodes", 0.0) - hours.get("more_nodes_asked", 0.0), 2),
        "GPU h",
        "--locality=node",
        f"{runs.get('more_nodes', 0) - runs.get('more_nodes_asked', 0)} of {runs.get('runs', 0)} runs on several GPUs "
        "were spread over more nodes than they needed or asked for",
        runs.get("more_nodes", 0) - runs.get("more_nodes_asked", 0),
    )
    for level, name in (("nvlink", "NVLink domains"), ("leaf", "leaves")):
        yield Stake(
            f"locality_{level}",
            hours.get(f"more_{level}", 0.0),
            "GPU h",
            f"--locality={level}",
            f"{runs.get(f'more_{level}', 0)} of {runs.get(f'several_nodes_{level}_known', 0)} runs on several nodes "
            f"lay in more {name} than they needed",
            runs.get(f"more_{level}", 0),
        )
    yield Stake(
        "waits_beside_idle",
        round(sum(one["enough_idle_hours"] for one in found["waits"].values()), 2),
        "h of waiting",
        "berthd's plan",
        "jobs waited without a known reason while as many GPUs were idle as they asked for; a part of that is Slurm's "
        "order, nodes that were down, and CPUs or memory",
    )
    tries, early = found["tries"], found["early"]
    yield Stake(
        "useless_tries",
        round(tries["failed_alike"]["gpu_hours"] + tries["resubmitted_alike"]["gpu_hours"], 2),
        "GPU h",
        "berth classify",
        f"{tries['failed_alike']['runs']} tries of the same job, and {tries['resubmitted_alike']['runs']} jobs "
        "submitted soon after one of the same owner and size, failed again of what another try does not change",
        tries["failed_alike"]["runs"] + tries["resubmitted_alike"]["runs"],
    )
    yield Stake(
        "preflight",
        early["gpu_hours"],
        "GPU h",
        "a first run on one GPU",
        f"{early['runs']} runs on several GPUs failed within 10 minutes, and not of their place: on one GPU first, "
        "this much less would have been lost",
        early["runs"],
    )
    yield Stake(
        "guests",
        found["use"]["low_gpu_hours"],
        "GPU h",
        "--gpu-tier, --gpu-share",
        f"held by jobs that kept their GPUs less than {LOW:.0%} busy",
        found["use"]["low_runs"],
    )
