"""Sums up how a finished job used its GPUs, from the records of Slurm and Berth; names what was not recorded.

Pure: the command `berth efficiency` reads the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from policy.formats import hostlist
from policy.report.rows import JobRun
from topology.calibrate.steps import JobReport

SLOWER = 1.02
"""Factor from which a GPU, or a rank, counts as slower than the others: less is noise."""

NO_USE = "Slurm measured no GPU use (it needs jobacct_gather with NVML, and AccountingStorageTRES=gres/gpuutil)"
NO_STEPS = "no step times were recorded: berth-guard records them for hosts, where berth.conf has [berthd] steps"
NO_SCORES = "no scores are known for its GPUs: berth.conf has no score table that this user may read"
NO_LINKS = "no topology file tells what other GPUs of its nodes would have given"
NO_BERTH = "Berth gave it no place, so that its GPUs are not known"

Positions = tuple[tuple[str, int], ...]
"""GPUs, each by node and position."""


def gpus_of(run: JobRun) -> Positions:
    """Returns the GPUs of a run as its segment has them; empty where Berth did not place it."""
    if run.said.get("state") not in {"placed", "waiting"}:
        return ()
    positions = [int(one) for one in run.said.get("gpus", "").split(",") if one.isdigit()]
    return tuple((name, one) for name in run.said.get("nodes", "").split(",") if name for one in positions)


def steps_of(report: JobReport | None) -> dict[str, Any] | None:
    """Returns the step times of a job's ranks, each without its waits for others; None where there are none."""
    if report is None:
        return None
    times = [rank.own_ms for rank in report.ranks]
    slowest = max(report.ranks, key=lambda rank: rank.own_ms)
    return {
        "ranks": len(times),
        "median_ms": round(median(times), 3),
        "slowest_ms": round(slowest.own_ms, 3),
        "slowest_gpu": f"{slowest.node}:{slowest.position}",
    }


def neighbours_of(run: JobRun, others: Iterable[JobRun]) -> list[str]:
    """Returns the numbers of the jobs that had a GPU of this run at the same time."""
    own, found = set(gpus_of(run)), set()
    for other in others:
        over = other.end if other.end is not None else float("inf")
        if other.id == run.id or other.start is None or run.start is None or run.end is None:
            continue
        if other.start < run.end and over > run.start and own & set(gpus_of(other)):
            found.add(other.id)
    return sorted(found, key=int)


def efficiency(
    run: JobRun,
    *,
    neighbours: Sequence[str] = (),
    steps: JobReport | None = None,
    scores: Mapping[tuple[str, int], float] | None = None,
    links: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Returns the figures of one run.

    `scores` has the score of each of its GPUs for its class, None if there is no table. `links` are the GB/s of an
    all-reduce on its GPUs of a node, and on the best as many GPUs of such a node.
    """
    told = steps_of(steps)
    own = {gpu: scores[gpu] for gpu in gpus_of(run) if gpu in scores} if scores is not None else {}
    unknown = []
    if run.used is None:
        unknown.append(NO_USE)
    if told is None:
        unknown.append(NO_STEPS)
    if not gpus_of(run):
        unknown.append(NO_BERTH)
    else:
        unknown += [*([] if own else [NO_SCORES]), *([] if links or run.gpus < 2 else [NO_LINKS])]
    slowest = max(own, key=lambda gpu: own[gpu], default=None)
    return {
        "job": run.id,
        "state": run.state,
        "waited_s": run.wait_s,
        "ran_s": run.ran_s,
        "gpus": run.gpus,
        "nodes": hostlist.fold(run.nodes),
        "gpu_use": None if run.used is None else round(run.used, 4),
        "steps": told,
        "shared_as": "packed" if "share" in run.said else run.said.get("tier"),
        "neighbours": list(neighbours),
        "slowest_gpu": None if slowest is None else f"{slowest[0]}:{slowest[1]}",
        "slowest_score": None if slowest is None else round(own[slowest], 4),
        "all_reduce_gbps": None if links is None else links[0],
        "best_all_reduce_gbps": None if links is None else links[1],
        "better_place": _better(run, told, own, links),
        "unknown": unknown,
    }


def _better(
    run: JobRun,
    steps: Mapping[str, Any] | None,
    scores: Mapping[tuple[str, int], float],
    links: tuple[float, float] | None,
) -> list[str]:
    """Returns what a better place would have given, one sentence for each thing that was recorded."""
    found = []
    if scores and (worst := max(scores.values())) >= SLOWER:
        typical = median(scores.values())
        where = next(gpu for gpu, score in scores.items() if score == worst)
        if len(scores) == 1:
            found.append(f"its GPU takes {worst - 1:.0%} more time than a typical one")
        else:
            found.append(
                f"{where[0]} GPU {where[1]} takes {worst - 1:.0%} more time than a typical GPU, the median of its GPUs "
                f"{typical - 1:+.0%}; a job whose ranks wait for each other runs at the pace of the slowest"
            )
    if steps and steps["ranks"] > 1 and steps["slowest_ms"] >= SLOWER * steps["median_ms"]:
        part = 1 - steps["median_ms"] / steps["slowest_ms"]
        found.append(
            f"the rank on {steps['slowest_gpu']} needed {steps['slowest_ms']:g} ms of its own for a step, the median "
            f"{steps['median_ms']:g} ms; as fast as the median, steps would have been up to {part:.0%} shorter"
        )
    if links and links[1] > links[0]:
        found.append(
            f"an all-reduce on its GPUs had about {links[0]:g} GB/s, on the best "
            f"{run.gpus // max(1, len(run.nodes))} GPUs of such a node it has {links[1]:g} GB/s"
        )
    return found
