# SPDX-License-Identifier: Apache-2.0
"""Small clusters whose GPUs can be shared, for the tests of packed jobs."""

from collections.abc import Mapping
from dataclasses import replace

from policy.cluster.fleet import Fleet, build_fleet
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import open_book
from policy.request.settings import Sharing
from tests.unit import policy_world
from tests.unit.policy_world import machine, reading, running, waiting
from topology.model import Machine

GPU_MIB = 17_408
"""16 GiB for packed jobs beside the reserve of 1 GiB."""


def node(name: str, /, **changes: object) -> NodeFacts:
    """A node of eight GPUs that Slurm counts in percent; `shared` says of how much of each packed jobs hold."""
    shared = changes.get("shared", ())
    assert isinstance(shared, tuple)
    used = changes.pop("used", 0)
    assert isinstance(used, int)
    used |= sum(1 << gpu for gpu, percent in enumerate(shared) if percent)
    return policy_world.node(name, shards=8, used=used, **changes)


def with_memory(one: Machine, mib: int = GPU_MIB, *, mig: bool = False) -> Machine:
    """The same machine, with so much memory on each GPU."""
    return replace(one, gpus=tuple(replace(gpu, memory_mib=mib, mig=mig) for gpu in one.gpus))


def fleet(look: Reading, sharing: Sharing | None = None, kinds: Mapping[str, str] | None = None) -> Fleet:
    """The fleet of a reading; nodes have no NVLink unless told."""
    machines = {one.name: with_memory(machine(one.name, (kinds or {}).get(one.name, "l40s"))) for one in look.nodes}
    return build_fleet(look.nodes, look.partitions, machines, look.memory, memory_counts=True, sharing=sharing)


def book(
    nodes: list[NodeFacts],
    jobs: list[JobFacts] | None = None,
    sharing: Sharing | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Book:
    """The book of a single reading."""
    look = reading(nodes, jobs)
    return open_book(fleet(look, sharing, kinds), look)


def packed(job_id: int, name: str, gpu: int, percent: int, ends_in: float = 1_000, **changes: object) -> JobFacts:
    """A packed job that runs on one GPU."""
    return running(job_id, name, 1 << gpu, ends_in, **{"share": percent, "user": 1_000, **changes})


def packed_waiting(job_id: int, name: str, gpu: int, percent: int, **changes: object) -> JobFacts:
    """A packed job that waits with a pin of ours."""
    given = changes.pop("segment", {})
    assert isinstance(given, dict)
    segment = {"share": str(percent), "way": "mps", "seats": "0", **given}
    return waiting(job_id, name, 1 << gpu, **{"share": percent, "user": 1_000, "segment": segment, **changes})
