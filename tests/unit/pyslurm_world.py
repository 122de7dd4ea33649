# SPDX-License-Identifier: Apache-2.0
"""A stand-in for pyslurm with the shapes that pyslurm 25.11.2 gave on Slurm 25.11.7, and the cluster behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from policy.slurm.by_library.pyslurm_gateway import PyslurmGateway

JOB: dict[str, Any] = {
    "state": "PENDING",
    "state_reason": "Resources",
    "user_id": 1000,
    "partition": "gpu",
    "priority": 5,
    "submit_time": 1_000,
    "eligible_time": 1_000,
    "time_limit": 60,
    "cpus": 2,
    "num_nodes": 1,
    "memory_per_node": 100,
    "constraints": [],
    "licenses": [],
    "gres_per_node": {"gres/gpu": 2},
}
RUNNING: dict[str, Any] = {
    "state": "RUNNING",
    "state_reason": "None",
    "allocated_nodes": "n3",
    "start_time": 2_000,
    "end_time": 5_600,
}
OTHERS = (
    *("start_time", "end_time", "memory_per_cpu", "allocated_nodes", "required_nodes", "excluded_nodes", "array_id"),
    *("array_task_id", "array_tasks_waiting", "array_tasks_parallel", "heterogeneous_id"),
    *("reservation", "account", "name", "admin_comment", "extra", "allocated_tres"),
)


class RPCError(Exception):
    """Stands for pyslurm.RPCError."""


class Job:
    """Stands for pyslurm.Job; a value that is an exception is raised where pyslurm raises it."""

    def __init__(
        self, job_id: int, layout: Mapping[str, Any] | None = None, mem: int | None = 100, **values: Any
    ) -> None:
        tres = SimpleNamespace(mem=SimpleNamespace(count=mem) if mem else None)
        self._values = {**dict.fromkeys(OTHERS), **JOB, "id": job_id, "requested_tres": tres, **values}
        self._layout = {node: {"cpu_ids": "0", "memory": 100, "gres": gres} for node, gres in (layout or {}).items()}

    def __getattr__(self, name: str) -> Any:
        value = self._values[name]
        if isinstance(value, Exception):
            raise value
        return value

    def get_resource_layout_per_node(self) -> Mapping[str, Any]:
        return self._layout


def held(*places: int, kinds: tuple[str, ...] = ("gpu",)) -> dict[str, Any]:
    """A part of a layout: pyslurm has a number where nothing is held, and for shards."""
    free: dict[str, Any] = {f"{kind}:g{place}": 0 for kind in kinds for place in range(8)}
    return free | {f"{kind}:g{place}": {"count": 1, "indexes": str(place)} for kind in kinds for place in places}


def node(name: str, **values: Any) -> SimpleNamespace:
    gres = {f"{kind}:g{place}": 1 for kind in ("gpu", "seat") for place in range(8)}
    common = {
        "state": "IDLE",
        "effective_cpus": 16,
        "allocated_cpus": 0,
        "real_memory": 64_000,
        "memory_reserved_for_system": None,
        "allocated_memory": 0,
        "threads_per_core": 1,
        "weight": 1,
        "active_features": ["v100"],
        "partitions": ["gpu"],
        "configured_gres": gres,
    }
    return SimpleNamespace(name=name, **common | values)


@dataclass
class World:
    """A cluster: what pyslurm loads, what the commands print, and which were run."""

    jobs: list[Job] = field(default_factory=list)
    nodes: list[SimpleNamespace] = field(default_factory=lambda: [node("n1"), node("n3")])
    printed: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    refusal: str = ""

    def module(self) -> Any:
        world = self

        def loader(what: Callable[[], list[Any]]) -> Any:
            def load() -> Any:
                world.refuse()
                return SimpleNamespace(values=what)

            return SimpleNamespace(load=load)

        return SimpleNamespace(
            PyslurmError=RPCError,
            Jobs=loader(lambda: world.jobs),
            Nodes=loader(lambda: world.nodes),
        )

    def shows(self, job_id: int, state: str, **values: str) -> None:
        """What scontrol shows of a job."""
        record = {"job_id": job_id, "job_state": [state], **values}
        self.printed["scontrol show job"] = json.dumps({"jobs": [record]})

    def refuse(self) -> None:
        if self.refusal:
            raise RPCError(self.refusal)

    def run(self, *command: str) -> bytes:
        self.commands.append(command)
        if command[0] == "squeue":
            # Every reading has a mark of its own, which ends each field.
            mark = command[-1].rpartition(":")[2]
            return self.printed.get("squeue", "").replace("|", mark).encode()
        return self.printed.get(" ".join(command[:3]), "").encode()

    def gateway(self) -> PyslurmGateway:
        return PyslurmGateway(self.module(), self.run)


class Stumbling(SimpleNamespace):
    """A node with a GRES of its site, which pyslurm takes for a number."""

    @property
    def configured_gres(self) -> dict[str, int]:
        return {"bw:lustre": int("no_consume")}
