# SPDX-License-Identifier: Apache-2.0
"""Reads smaller inputs: node events, quotas, and the time limits and models that a trace may lack."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policy.formats.errors import UsageError
from policy.simulate.inputs.text import read_table
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds import philly
from policy.simulate.pal_rounds.events import NodeEvent


def read_events(path: str, names: Sequence[str]) -> list[NodeEvent]:
    """Reads `node,start,end,factor`: a node takes `factor` times as long from `start` to `end`, in seconds.

    The node is given by name or number.
    """
    table = read_table(path)
    table.need("node", "start", "end", "factor")
    places = {name: place for place, name in enumerate(names)} | {str(place): place for place in range(len(names))}
    events = []
    for row in table.rows:
        if row["node"] not in places:
            raise row.wrong("node", f"a node's name or a number up to {len(names) - 1}")
        start, end = row.number("start"), row.number("end")
        if end <= start:
            raise row.wrong("end", f"a time after the start, {start:g} s,")
        down = row["factor"] in ("down", "inf")
        events.append(NodeEvent(places[row["node"]], start, end, float("inf") if down else row.number("factor", 0.01)))
    return events


def read_quotas(path: str) -> dict[str, int]:
    """Reads `account,gpus`: the most GPUs that an account may hold."""
    table = read_table(path)
    table.need("account", "gpus")
    return {row["account"]: row.whole("gpus") for row in table.rows}


def completed(jobs: Sequence[TraceJob], limits: str, models: str, seed: int) -> list[TraceJob]:
    """Returns the jobs with the study's limits and models if the trace itself has none."""
    drawn = philly.with_models(jobs, seed=seed) if models == "drawn" else list(jobs)
    return _with_limits(drawn, limits, seed)


def _with_limits(jobs: list[TraceJob], how: str, seed: int) -> list[TraceJob]:
    if how == "trace":
        return jobs
    if how == "drawn":
        return philly.with_limits(jobs, seed)
    try:
        factor = float(how)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        raise UsageError(f"--limits {how}: write trace, drawn, or a factor from 1 on")
    return [replace(job, limit=factor * job.work) for job in jobs]


def shifted(jobs: Sequence[TraceJob], most_s: float, seed: int) -> list[TraceJob]:
    """Returns the same jobs, each up to so many seconds sooner or later."""
    draw = np.random.default_rng(seed)
    moved = draw.uniform(-most_s, most_s, len(jobs))
    return [replace(job, submit=max(0.0, job.submit + by)) for job, by in zip(jobs, moved.tolist(), strict=True)]
