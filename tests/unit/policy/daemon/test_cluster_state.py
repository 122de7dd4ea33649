# SPDX-License-Identifier: Apache-2.0
"""Checks what the planner writes for the metrics: GPUs by state, islands, reasons, counters, and jobs on request."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cluster.shared.fragmentation import DEFAULT
from policy.cluster.snapshot import Cluster
from policy.daemon.passes import cluster_state, overviews
from policy.daemon.passes.cluster_state import joined, state_of
from policy.daemon.passes.handover import Sender
from policy.daemon.passes.overviews import OverviewWriter
from policy.daemon.passes.planner import Planner
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.plan.ledger.tracker import Tracker
from policy.site.config import Config, MetricsOptions
from policy.site.metrics_state import ClusterState, read_metrics
from policy.site.overview import OverviewFile
from tests.unit.guest_world import guest, host
from tests.unit.guest_world import node as shared_node
from tests.unit.policy.daemon.test_planner_writes import Slurm, write_all
from tests.unit.policy_world import NOW, fleet, machine, node, reading, running, waiting
from topology import files
from topology.machines import rack
from topology.network.fabric import Fabric


def cluster_of(look: Reading, kinds: dict[str, str] | None = None, fabric: Fabric | None = None) -> Cluster:
    tracker = Tracker(fleet(look, kinds, fabric))
    tracker.update(look)
    return tracker.book().cluster


def test_each_gpu_is_in_one_state_by_its_owner() -> None:
    nodes = [
        node("n1", used=0b0000_0011),
        node("n2", used=0b0000_0001, up=False),
        shared_node("n3", shared=(30, 0, 0, 0, 0, 0, 0, 0), used=0b0000_0110),
        shared_node("n4", used=0b0000_0001),
        node("n5", loose=2, gpus=8),
        node("c1", gpus=0, seats=0),
    ]
    jobs = [host(1, "n4", 0b1), guest(2, "n4", 0), guest(3, "n4", 5)]
    look = reading(nodes, jobs)

    state = state_of(look, cluster_of(look, dict.fromkeys(("n1", "n2", "n3", "n4"), "h100")))

    by_node = dict(zip(state.names, zip(*state.gpus.values(), strict=True), strict=True))
    assert list(state.gpus) == ["free", "whole", "shared", "drained", "unplaced"]
    assert by_node == {
        "n1": (6, 2, 0, 0, 0),
        "n2": (0, 1, 0, 7, 0),
        "n3": (5, 2, 1, 0, 0),
        "n4": (6, 0, 2, 0, 0),
        "n5": (0, 0, 0, 0, 10),
        "c1": (0, 0, 0, 0, 0),
    }
    assert state.models == ["h100"] * 4 + ["", ""]
    assert (state.not_ready, state.empty_nodes) == (1, 0)
    assert state.running == {"whole": 1, "packed": 0, "guest": 2}
    assert state.holds == []


def test_islands_are_what_nvlink_joins_of_the_free_gpus() -> None:
    # Of the cube mesh, 0 and 6 are joined through 2 only; of the pairs, 2 and 3 are one.
    nodes = [node("n1", used=0b1011_1010), node("n2", used=0b1111_0010), node("n3", used=0xFF)]
    look = reading(nodes)

    state = state_of(look, cluster_of(look, {"n1": "v100", "n2": "a6000", "n3": "h100"}))

    assert state.islands == [("a6000", 1, 1), ("a6000", 2, 1), ("v100", 3, 1)]
    assert joined(machine("n1", "v100").shape, 0b0100_0001) == (1, 1)


def test_an_nvlink_domain_that_spans_nodes_is_one_island() -> None:
    names = ["t1", "t2", "t3"]
    trays = rack("gb200-nvl72", names)
    look = reading([node(name, gpus=4, seats=4, used=0b1) for name in names])
    cluster = cluster_of(look, {}, Fabric.of(trays))
    whole = replace(
        cluster.fleet,
        machines=tuple(trays),
        ready=~cluster.fleet.ready,
        size=cluster.fleet.size + 4,
        not_ready={},
    )

    state = state_of(look, replace(cluster, fleet=whole))

    assert state.islands == [(trays[0].model, 9, 1)]


def test_stranded_gpus_grow_with_fragments() -> None:
    together = reading([node("n1", used=0xFF), node("n2")])
    torn = reading([node("n1", used=0x0F), node("n2", used=0xF0)])

    few, many = (state_of(look, replace(cluster_of(look), shapes=DEFAULT)).stranded_gpus for look in (together, torn))

    assert 0.0 <= few < many <= 8.0


def test_slow_gpus_are_named_slowest_first_and_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "MOST_SLOW", 2)
    look = reading([node("n1"), node("n2")])
    cluster = cluster_of(look)
    scores = cluster.fleet.size[:, None] * 0.0 + 1.0 + [[0.0, 0.04, 0.05, 0.2, 0, 0, 0, 0], [0.5, 0, 0, 0, 0, 0, 0, 0]]

    state = state_of(look, replace(cluster, fleet=replace(cluster.fleet, scores={"compute": scores})))

    assert state.slow == [("n2", 0, "compute", 1.5), ("n1", 3, "compute", 1.2)]
    assert state.slow_counts == [("h100", "compute", 3)]


def test_gpus_that_guards_close_are_named() -> None:
    look = reading([node("n1"), node("n2")])

    state = state_of(look, replace(cluster_of(look), closed={1: 0b101}))

    assert state.closed == [("n2", 0), ("n2", 2)]


def test_jobs_are_told_only_to_a_site_that_asks_for_them() -> None:
    look = reading([node("n1", used=0b11)], [running(4, "n1", 0b11, 900, holds=(0b11,))])
    cluster = cluster_of(look)

    assert state_of(look, cluster).holds == []
    assert state_of(look, cluster, job_info=True).holds == [("GPU-n1-0", 4), ("GPU-n1-1", 4)]


# The planner itself.


def planner_of(slurm: Slurm, folder: Path, channel: socket.socket, options: MetricsOptions) -> Planner:
    for one in slurm.nodes:
        files.dump(machine(one.name, "h100"), folder / f"{one.name}.json")
    config = Config(topology_dir=folder, fabric="none", pinned_file=folder / "pinned", metrics=options)
    return Planner(slurm, config, Sender(channel), OverviewWriter(folder / "overview"))  # type: ignore[arg-type]


def one_pass(planner: Planner) -> None:
    """A pass whose state is written when this returns."""
    planner.one_pass(ended=False)
    assert planner._overviews is not None
    planner._overviews.close()


def written(folder: Path) -> ClusterState:
    state = read_metrics((folder / "overview").read_bytes())
    assert state is not None
    return state


def test_a_pass_writes_the_state_and_the_next_one_what_was_done(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "MAKE_EVERY", 0.0)
    segment = {"because": "capacity", "because_text": "no GPU is free"}
    young = {"submitted": int(NOW) - 5}
    jobs = [
        running(1, "n1", 0xFF, 3_000),
        waiting(5, "n1", 0b01, **young),
        waiting(6, "n1", 0xFF, segment=segment, **young),
        waiting(7, "n1", 0xFF, segment={"because": "a user's own words"}, **young),
    ]
    slurm = Slurm([node("n1", used=0xFF), node("n2")], jobs)
    planner = planner_of(slurm, tmp_path, channel, MetricsOptions(enabled=True))

    one_pass(planner)
    first = written(tmp_path)
    assert first.at == NOW
    assert (first.waiting["starting"], first.waiting["capacity"]) == (1, 1)
    assert first.waiting["new"] == 1, "what no list knows is no label"
    assert sum(first.waiting.values()) == 3
    assert (first.counts["pins_again"], first.counts["updates"]) == (0, 0)

    write_all(planner)
    one_pass(planner)
    second = written(tmp_path)
    assert second.counts["pins_again"] == second.counts["updates"] == len(slurm.pins) > 0
    assert second.counts["pins_first"] == 0
    assert (second.passes.cumulative[-1], second.looks.cumulative[-1]) == (2, 2)
    assert oct((tmp_path / "overview").stat().st_mode & 0o777) == "0o600"
    assert "1000005" not in json.dumps(list(second.waiting))


def test_without_metrics_the_file_has_none(tmp_path: Path, channel: socket.socket) -> None:
    one_pass(planner_of(Slurm([node("n1")], []), tmp_path, channel, MetricsOptions()))

    assert read_metrics((tmp_path / "overview").read_bytes()) is None
    assert "metrics" not in OverviewFile(tmp_path / "overview").read()


def test_new_metrics_are_written_beside_an_overview_that_is_not_due(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "MAKE_EVERY", 0.0)
    monkeypatch.setattr(overviews, "EVERY", 1_000.0)
    slurm = Slurm([node("n1")], [])
    planner = planner_of(slurm, tmp_path, channel, MetricsOptions(enabled=True))
    one_pass(planner)
    before = OverviewFile(tmp_path / "overview").read()

    slurm.nodes = [node("n1", used=0xFF)]
    one_pass(planner)

    after = OverviewFile(tmp_path / "overview").read()
    assert (after["nodes"], after["jobs"]) == (before["nodes"], before["jobs"])
    assert written(tmp_path).gpus["whole"] == [8]
    assert before["metrics"]["gpus"]["whole"] == [0]


def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path: Path, channel: socket.socket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "MAKE_EVERY", 0.0)
    planner = planner_of(Slurm([node("n1")], []), tmp_path, channel, MetricsOptions(enabled=True))
    (tmp_path / "overview").mkdir()

    for _ in range(2):
        one_pass(planner)

    assert capsys.readouterr().err.count("the metrics have nothing new to show") == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"at": "x"}', b'{"metrics": {"at": "x"}}'])
def test_a_file_of_another_release_is_no_state(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "overview").write_bytes(text)

    assert read_metrics((tmp_path / "overview").read_bytes()) is None


def nodes_of(count: int) -> list[NodeFacts]:
    return [node(f"n{place}") for place in range(count)]


def test_empty_nodes_are_counted_by_leaf() -> None:
    look = reading(nodes_of(4))
    flat = Fabric.flat(tuple(one.name for one in look.nodes))
    leaf = flat.leaf.copy()
    leaf[:] = [0, 1, 1, 1]
    busy: list[JobFacts] = []

    state = state_of(look, cluster_of(reading(nodes_of(4), busy), None, replace(flat, leaf=leaf)))

    assert (state.empty_nodes, state.empty_nodes_of_a_leaf) == (4, 3)
