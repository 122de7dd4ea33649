# SPDX-License-Identifier: Apache-2.0
"""Finds the jobs that are ahead of a waiting job in berthd's overview: they hold its place, or are planned before it.

Each becomes a bar: these GPUs of these nodes, from `start` to `end`. GPUs that are free now and `kept` for a job
before it in line are bars too. A job that the viewer may not see has a size and times, and no number and no user.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from policy.formats import hostlist
from policy.formats.slurm_syntax.moments import local_time
from policy.site.overview import user_of
from policy.site.privacy import Visibility

MOST_BARS = 12
"""The most bars for one job, the earliest ones."""

_SAID = 4
"""The most bars of a kind that become rows for people."""


def ahead_of(
    overview: Mapping[str, Any], job_id: int, visibility: Visibility, viewer: int | None
) -> dict[str, Any] | None:
    """Returns the jobs ahead of a job, as one user may see them; None if the job does not wait."""
    line = [job for job in overview["jobs"] if job["state"] == "PENDING"]
    own = next((job for job in line if job["id"] == job_id), None)
    if own is None:
        return None
    partitions = set(own["partition"].split(","))
    nodes = {one["name"]: one["gpus"] for one in overview["nodes"] if not partitions.isdisjoint(one["partitions"])}
    names = cache(lambda text: [name for name in hostlist.expand(text) if name in nodes])
    free = {name: {place for place, one in enumerate(cells) if one["state"] == "free"} for name, cells in nodes.items()}
    place = own.get("planned", {"nodes": "", "gpus": []})
    wanted = {name: set(place["gpus"]) for name in names(place["nodes"])}
    before = [job for job in line[: line.index(own)] if "planned" in job and names(job["planned"]["nodes"])]
    bars = [*_running(overview["jobs"], nodes, wanted)]
    for job in before:
        bars += _planned(job, overview["at"], names(job["planned"]["nodes"]), free, wanted)
    names_nodes = visibility.shows("nodes", viewer)
    for bar in bars:
        owner = bar.pop("user_id")
        bar["user"] = user_of(owner)
        if not visibility.shows("jobs", viewer, owner):
            bar["job"] = bar["user"] = None
        bar["whose"] = _whose(bar)
        bar["nodes"] = bar["nodes"] if names_nodes else ""
    bars.sort(key=lambda bar: (not bar["kept"], bar["start"]))
    gpus = sum(job["gpus"] for job in before)
    return {"at": overview["at"], "jobs": len(before), "gpus": gpus, "bars": bars[:MOST_BARS]}


def _running(
    jobs: Iterable[Mapping[str, Any]], nodes: Mapping[str, Any], wanted: Mapping[str, set[int]]
) -> Iterator[dict[str, Any]]:
    """Yields the jobs that hold the GPUs of a place."""
    held: dict[int, dict[str, set[int]]] = {}
    for name, gpus in wanted.items():
        for position in gpus:
            cell = nodes[name][position] if position < len(nodes[name]) else {}
            for job in filter(None, (cell.get("owner"), *(part["job"] for part in cell.get("packed", ())))):
                held.setdefault(job, {}).setdefault(name, set()).add(position)
    for job in jobs if held else ():
        if job["id"] in held:
            here = held[job["id"]]
            yield _bar(job, list(here), set().union(*here.values()), job["start"] or 0, job["end"])


def _planned(
    job: Mapping[str, Any],
    at: float,
    names: Sequence[str],
    free_on: Mapping[str, set[int]],
    wanted: Mapping[str, set[int]],
) -> Iterator[dict[str, Any]]:
    """Yields the bars of a job that is planned before this one: free GPUs kept for it, and its GPUs in this place."""
    gpus, start = job["planned"]["gpus"], job["planned"]["start"]
    if start is None or not any(free_on[name] or name in wanted for name in names):
        return
    end = (start or at) + job["limit"] if job["limit"] else None
    free = [name for name in names if not free_on[name].isdisjoint(gpus)]
    there = [name for name in names if name not in free and not wanted.get(name, set()).isdisjoint(gpus)]
    for here, kept in ((free, True), (there, False)):
        if here:
            yield {**_bar(job, here, gpus, start, end), "kept": kept}


def _bar(
    job: Mapping[str, Any], names: Iterable[str], gpus: Iterable[int], start: float, end: float | None
) -> dict[str, Any]:
    whose = {"job": job["id"], "user_id": job["user_id"], "gpus": job["gpus"], "runs": job["state"] != "PENDING"}
    where = {"nodes": hostlist.fold(names), "positions": sorted(gpus)}
    return {**whose, **where, "start": start, "end": end, "kept": False}


def ahead_rows(ahead: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Returns the jobs ahead of a job as rows for people; no rows if the job does not wait."""
    if ahead is None:
        return []
    jobs, bars = ahead["jobs"], ahead["bars"]
    planned = f"{jobs} job{'s' if jobs > 1 else ''} of {ahead['gpus']} GPUs, by Slurm's order"
    kept = [("kept", f"{_where(bar)} for {bar['whose']}, {_from(bar)}") for bar in bars if bar["kept"]]
    place = [("its place", f"{_where(bar)} of {bar['whose']}, {_times(bar)}") for bar in bars if not bar["kept"]]
    return [*([("before it", planned)] if jobs else []), *kept[:_SAID], *place[:_SAID]]


def _whose(bar: Mapping[str, Any]) -> str:
    size = f"{bar['gpus']} GPU{'s' if bar['gpus'] != 1 else ''}"
    return f"another user's job of {size}" if bar["job"] is None else f"job {bar['job']} of {bar['user']} ({size})"


def _where(bar: Mapping[str, Any]) -> str:
    gpus = f"GPU{'s' if len(bar['positions']) != 1 else ''} {hostlist.fold_numbers(tuple(bar['positions']))}"
    return f"{bar['nodes']} {gpus}" if bar["nodes"] else gpus


def _from(bar: Mapping[str, Any]) -> str:
    return f"which starts there at {local_time(bar['start'])}" if bar["start"] else "which starts there next"


def _times(bar: Mapping[str, Any]) -> str:
    until = f"until {local_time(bar['end'])} at the latest" if bar["end"] else "with no time limit"
    return until if bar["runs"] else f"{_from(bar)}, {until}"
