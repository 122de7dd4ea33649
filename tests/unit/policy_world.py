# SPDX-License-Identifier: Apache-2.0
"""Small clusters for the tests of the policy side."""

from collections.abc import Mapping
from typing import Any, cast

from policy.cluster.fleet import Fleet, build_fleet
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, Memory, NodeFacts, PartitionFacts, Reading
from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import open_book
from policy.plan.opinions.opinion import Opinion
from policy.plan.queue.plan import Plan
from policy.request.submission import Request, read
from topology.model import Gpu, Link, Machine
from topology.network.fabric import Fabric

NOW = 1_000_000.0
NONCE = "0123456789abcdef"

# DGX-1V: (a, b, number of NVLinks of 25 GB/s); every GPU has six.
CUBE_MESH = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)


def machine(node: str, kind: str, size: int = 8) -> Machine:
    """A machine of a well-known kind: v100, h100, a6000 (pairs) or l40s (no NVLink)."""
    links_of = {
        "v100": tuple(Link(a, b, count, 25.0 * count) for a, b, count in CUBE_MESH),
        "h100": tuple(Link(a, b, 18, 450.0, "switch") for a in range(size) for b in range(a + 1, size)),
        "a6000": tuple(Link(a, a + 1, 4, 56.25) for a in range(0, size, 2)),
        "l40s": (),
    }
    assert kind in links_of, f"no machine of kind {kind!r} is drawn here, only of {sorted(links_of)}"
    gpus = tuple(Gpu(position, position, f"GPU-{node}-{position}") for position in range(size))
    return Machine(node, kind, gpus, links_of[kind])


def node(name: str, /, **changes: object) -> NodeFacts:
    """An 8-GPU node with 32 CPUs and 64,000 MB; `used` are GPUs that jobs of one CPU each hold."""
    used = cast("int", changes.pop("used", 0))
    facts: dict[str, object] = {
        "name": name,
        "cpus": 32,
        "cpus_used": used.bit_count(),
        "mem": 64_000,
        "mem_used": 100 * used.bit_count(),
        "threads": 1,
        "up": True,
        "completing": False,
        "gpus": 8,
        "loose": 0,
        "seats": 8,
        "gpus_used": used,
        "seats_used": 0,
        "features": frozenset({"rack1"}),
        "partitions": frozenset({"gpu"}),
    }
    return NodeFacts(**{**facts, **changes})  # type: ignore[arg-type]


def running(job_id: int, name: str, gpus: int, ends_in: float, **changes: object) -> JobFacts:
    """A job that runs on one node."""
    facts: dict[str, object] = {
        "id": job_id,
        "state": "RUNNING",
        "partition": "gpu",
        "priority": 1,
        "submitted": int(NOW) - 100,
        "start": int(NOW) - 100,
        "end": int(NOW + ends_in),
        "limit": 3_600,
        "cpus": gpus.bit_count(),
        "nodes": (name,),
        "required": (name,),
        "gpus": gpus or None,
    }
    if "segment" in changes:
        texts = changes.pop("segment")
        changes["plan"] = None if texts is None else JobPlan(dict(texts))  # type: ignore[call-overload]
    return JobFacts(**{**facts, **changes})  # type: ignore[arg-type]


def waiting(job_id: int, name: str, gpus: int, **changes: object) -> JobFacts:
    """A job that waits with a pin of ours on one node."""
    positions = [place for place in range(8) if gpus >> place & 1]
    segment: Mapping[str, str] = {
        "state": "waiting",
        "id": f"{job_id:016x}",
        "asked": f"tres_per_job:gres/gpu:{len(positions)}",
        "n": "1",
        "k": str(len(positions)),
        "cpus": "1",
        "mem": "100",
        "nodes": name,
        "gpus": ",".join(map(str, positions)),
        "seats": "1",
        "level": "node",
        **changes.pop("segment", {}),  # type: ignore[dict-item]
    }
    facts = {"state": "PENDING", "nodes": (), "start": None, "end": None, "reason": "Resources", "segment": segment}
    return running(job_id, name, gpus, 0, **{**facts, **changes})


def reading(nodes: list[NodeFacts], jobs: list[JobFacts] | None = None, **changes: object) -> Reading:
    """One look at Slurm."""
    facts: dict[str, object] = {
        "at": NOW,
        "nodes": tuple(nodes),
        "jobs": tuple(jobs or ()),
        "partitions": (PartitionFacts("gpu", default=True, time_limit=3_600),),
        "memory": Memory(per_cpu=100),
    }
    return Reading(**{**facts, **changes})  # type: ignore[arg-type]


def fleet(look: Reading, kinds: Mapping[str, str] | None = None, fabric: Fabric | None = None) -> Fleet:
    """The fleet of a reading; nodes are of kind h100 unless told."""
    kinds = {one.name: "h100" for one in look.nodes} if kinds is None else kinds
    machines = {name: machine(name, kind) for name, kind in kinds.items()}
    return build_fleet(
        look.nodes,
        look.partitions,
        machines,
        look.memory,
        memory_counts=look.memory_counts,
        in_all_partitions=look.in_all_partitions,
        fabric=fabric,
    )


def book(look: Reading, kinds: Mapping[str, str] | None = None) -> Book:
    """The book of a reading."""
    return open_book(fleet(look, kinds), look)


def memory_of(plan: Plan, kind: type[Opinion]) -> dict[int, Any]:
    """What an opinion keeps of jobs."""
    return next(one for one in plan.opinions if isinstance(one, kind)).memory


def request_of(fields: Mapping[str, str]) -> Request:
    return read(fields).request()


def submit(**fields: str) -> dict[str, str]:
    """A submit request as sbatch causes it."""
    return {"nonce": NONCE, "uid": "1000", "client": "batch", "time_limit": "60", **fields}
