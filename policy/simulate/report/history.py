# SPDX-License-Identifier: Apache-2.0
"""Writes the history of one run, which `berth web --from-simulation` plays (docs/develop/formats.md, section 10)."""

import json
from collections.abc import Iterable
from typing import Any

from policy.cluster.fleet import Fleet
from policy.simulate.report.files import write_text
from policy.simulate.result import EPOCH, SimulationOutcome

SCHEMA_VERSION = 1


def write_history(outcome: SimulationOutcome, fleet: Fleet, path: str) -> None:
    """Writes each job's runs, and the segments that Berth wrote into the jobs meanwhile."""
    write_text(path, json.dumps(_plain(outcome, fleet), separators=(",", ":")) + "\n")


def _plain(outcome: SimulationOutcome, fleet: Fleet) -> dict[str, Any]:
    width = int(fleet.size.max(initial=1))
    runs: dict[str, list[list[Any]]] = {}
    for one in sorted(outcome.stretches, key=lambda one: one.start):
        # Segments have times of this epoch, so all others get it too.
        place = _places(one.gpus, width)
        runs.setdefault(one.job, []).append([round(EPOCH + one.start, 3), round(EPOCH + one.end, 3), place])
    models = {machine.model: machine for machine in fleet.machines if machine is not None}
    return {
        "schema_version": SCHEMA_VERSION,
        "policy": outcome.policy,
        "zero": EPOCH,
        "nodes": _nodes(fleet),
        "links": {name: [[link.a, link.b, link.gbps] for link in one.links] for name, one in models.items()},
        "jobs": [
            {
                "id": job.id,
                "user": job.user,
                "account": job.account,
                "name": job.name or job.model,
                "gpus": job.gpus,
                "submitted": round(EPOCH + job.submit, 3),
                "limit": job.limit,
                "ends": round(EPOCH + outcome.ends[job.id], 3),
                "runs": runs.get(job.id, []),
            }
            for job in outcome.jobs
        ],
        "written": [[round(EPOCH + at, 3), job, dict(values)] for at, job, values in outcome.written],
    }


def _nodes(fleet: Fleet) -> list[dict[str, Any]]:
    fabric, scores = fleet.fabric, fleet.scores.get("compute")

    def group(names: tuple[str, ...], number: int) -> str:
        return names[number] if 0 <= number < len(names) else ""

    return [
        {
            "name": name,
            "gpus": int(fleet.size[place]),
            "leaf": group(fabric.leaves, int(fabric.leaf[place])),
            "pod": group(fabric.pods, int(fabric.pod[place])),
            "domain": group(fabric.domains, int(fabric.domain[place])),
            "model": machine.model if (machine := fleet.machines[place]) is not None else "",
            "scores": [] if scores is None else [round(float(one), 3) for one in scores[place][: fleet.size[place]]],
        }
        for place, name in enumerate(fleet.names)
    ]


def _places(gpus: Iterable[int], width: int) -> list[list[int]]:
    masks: dict[int, int] = {}
    for gpu in gpus:
        masks[gpu // width] = masks.get(gpu // width, 0) | 1 << gpu % width
    return [[node, mask] for node, mask in sorted(masks.items())]
