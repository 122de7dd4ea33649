# SPDX-License-Identifier: Apache-2.0
"""Hosts, guests, and jobs that wait for seats, for the tests of tiers."""

from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings, Sharing
from tests.unit.policy_world import NOW, reading, running, waiting
from tests.unit.share_world import fleet, node

__all__ = ["NOW", "book", "fleet", "guest", "host", "node", "parked", "plan", "reading", "running", "seated", "waiting"]


def host(job_id: int, name: str, gpus: int, ends_in: float = 9_000, **changes: object) -> JobFacts:
    """A guaranteed job that runs; a `gpu_mem` of "" in its segment: it does not say what memory it needs."""
    segment = {"state": "placed", "id": f"{job_id:016x}", "tier": "guaranteed", "way": "time", "gpu_mem": "2048"}
    segment |= changes.pop("segment", {})  # type: ignore[call-overload]
    segment = {key: value for key, value in segment.items() if value}
    return running(job_id, name, gpus, ends_in, **{"segment": segment, "holds": (gpus,), **changes})


def guest(job_id: int, name: str, gpu: int, **changes: object) -> JobFacts:
    """A guest that runs."""
    segment = _segment(job_id, changes, tier="opportunistic", way="time", nodes=name, gpus=str(gpu), state="placed")
    facts = {"guest": True, "segment": segment, "holds": (0,), "mem": 100, "user": 7}
    return running(job_id, name, 1 << gpu, 9_000, **{**facts, **changes})


def parked(job_id: int, **changes: object) -> JobFacts:
    """A guest that waits for a seat."""
    segment = _segment(job_id, changes, tier="opportunistic", state="later", parked="0")
    facts = {
        "segment": segment, "required": (), "reason": "BeginTime", "begin": int(NOW) + 86_000, "user": 7,
    }  # fmt: skip
    return waiting(job_id, "", 0, **{**facts, **changes})


def seated(job_id: int, name: str, gpu: int, **changes: object) -> JobFacts:
    """A guest that Slurm has yet to start on its seat."""
    one = guest(job_id, name, gpu, **changes)
    return waiting(job_id, name, 1 << gpu, guest=True, segment=one.known.texts)


def _segment(job_id: int, changes: dict[str, object], **values: str) -> dict[str, str]:
    given = changes.pop("segment", {})
    assert isinstance(given, dict)
    common = {"id": f"{job_id:016x}", "asked": "tres_per_job:gres/gpu:1", "n": "1", "k": "1", "cpus": "1", "mem": "100"}
    return {**common, **values, **given}


def book(nodes: list[NodeFacts], jobs: list[JobFacts], sharing: Sharing | None = None) -> Book:
    """The book of a single reading."""
    tracker = Tracker(fleet(look := reading(nodes, jobs), sharing))
    tracker.update(look)
    return tracker.book()


def plan(
    nodes: list[NodeFacts],
    jobs: list[JobFacts],
    sharing: Sharing | None = None,
    closed: dict[int, int] | None = None,
    settings: Settings | None = None,
) -> list[Change]:
    """What a first pass changes."""
    look: Reading = reading(nodes, jobs)
    tracker = Tracker(fleet(look, sharing))
    tracker.closed = closed or {}
    tracker.update(look)
    return Plan(BerthPolicy(), settings or Settings()).replan(tracker.book(), look.jobs)
