# SPDX-License-Identifier: Apache-2.0
"""berthd where GPUs have no types of their own: it counts, compares and leaves places to Slurm."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from policy.cluster.partitions import least_gpus
from policy.cluster.untyped import numbered
from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Sender, Snapshot
from policy.daemon.passes.planner import Planner
from policy.formats import segment, wire
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.site.config import Config
from tests.unit.policy_world import NOW, book, fleet, machine, node, reading, running, submit, waiting
from topology import files


def plain(name: str, used: int = 0, **changes: object) -> NodeFacts:
    """A node that lists its GPUs by a count."""
    return node(name, used=used, **{"gpus": 0, "loose": 8, "seats": 0, **changes})


class OnlyRead:
    """A gateway to jobs and nodes; whatever is written fails the test."""

    name = "test"

    def __init__(self, nodes: list[NodeFacts], jobs: list[JobFacts]) -> None:
        self.nodes, self.jobs = nodes, jobs

    def read(self, *, ended: bool) -> Reading:
        assert not ended
        return replace(reading(self.nodes, self.jobs), in_control=True)


def test_a_pass_counts_and_compares_and_changes_no_job(tmp_path: Path, channel: socket.socket) -> None:
    files.dump(machine("n1", "a6000"), tmp_path / "n1.json")
    held = replace(running(1, "n1", 0, 600), holds=(0b101,), gpus=None, required=(), cpus=1)
    # It came while berthd was away: on the exact layout it would be given a place now.
    came = waiting(2, "n1", 0)
    came = replace(came, gpus=None, required=(), plan=JobPlan({"state": "passed", "asked": "tres_per_node:gres/gpu:2"}))
    slurm = OnlyRead([plain("n1", used=0b101)], [held, came])
    config = Config(topology_dir=tmp_path, fabric="none", pinned_file=tmp_path / "pinned", plain=True)
    planner = Planner(slurm, config, Sender(channel))  # type: ignore[arg-type]

    planner.one_pass(ended=False)
    while planner.write_one():
        pass

    tracker = planner._tracker
    assert tracker is not None
    assert tracker.book().cluster.free_gpus == 6
    assert planner._watcher is not None
    assert planner._watcher.told()["observed_better_links"] == "1"


def answer(**fields: str) -> wire.Message:
    made = Answerer(Config(plain=True), "0", 1)
    opened = book(numbered(reading([plain("n1"), plain("n2", loose=4)])), {"n1": "h100"})
    made.take(Snapshot(opened.cluster, frozenset(), "24.11.5", "test", ""), NOW)
    reply = made.answer(wire.encode("submit", submit(**fields)), NOW)
    assert reply is not None
    return wire.decode(reply)


def test_a_job_is_left_to_slurm_with_its_flags_and_what_each_node_has() -> None:
    reply = answer(tres_per_node="gres/gpu:h100:2", **{"flag.retry": "2"})

    values = segment.fields(f"[berth/1 {reply.fields['segment']}]") or {}
    assert (reply.verb, reply.fields["node_gpus"]) == ("pass", "4")
    assert (values["state"], values["f.retry"]) == ("passed", "2")
    assert "asked" not in values


def test_a_flag_that_can_never_be_met_refuses_nothing_there() -> None:
    assert answer(tres_per_node="gres/gpu:2", **{"flag.locality": "nvlink"}).verb == "pass"


def test_the_least_gpus_are_those_of_the_jobs_partitions() -> None:
    found = fleet(numbered(reading([plain("n1"), plain("n2", loose=4), node("n3", gpus=0, seats=0)])), {})

    assert least_gpus(found, "gpu") == 4
    assert least_gpus(found, None) == 4
    assert least_gpus(found, "gpu,unknown") == 0
