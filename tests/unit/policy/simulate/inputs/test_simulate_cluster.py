# SPDX-License-Identifier: Apache-2.0
"""`berth simulate` on the nodes of a topology folder: several kinds of machines, Slurm's fabric, score tables."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy.cli.main import main
from policy.placement.registry import policies
from policy.simulate import world
from policy.simulate.inputs import cluster, read_traces
from policy.simulate.study import Study
from tests.unit.policy.simulate.study_file import study
from topology import files
from topology.machines import machine
from topology.network.fabric import Fabric
from topology.providers import slurm_fabric

KINDS = {"big-a": "dgx-a100", "big-b": "dgx-a100", "small-a": "a100-4", "small-b": "a100-4"}
SIZES = {"big-a": 8, "big-b": 8, "small-a": 4, "small-b": 4}
TOPOLOGY_CONF = "SwitchName=s1 Nodes=big-a,big-b\nSwitchName=s2 Nodes=small-a,small-b\nSwitchName=top Switches=s[1-2]\n"


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two kinds of nodes, and a trace whose widest job needs a node of the larger kind."""
    (tmp_path / "nodes").mkdir()
    for name, kind in KINDS.items():
        files.dump(machine(kind, name), tmp_path / "nodes" / f"{name}.json")
    lines = [f"{job},{(1, 2, 4, 8, 1, 3)[job % 6]},{job * 40},{300 + 90 * (job % 7)},mixed" for job in range(30)]
    (tmp_path / "trace.csv").write_text("job_id,num_gpus,submit_time,duration,class\n" + "\n".join(lines) + "\n")
    (tmp_path / "topology.conf").write_text(TOPOLOGY_CONF)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[dict[str, Any]], str]:
    """What is printed as JSON, and what is said beside it."""
    code = main(["simulate", "trace.csv", "--topology", "nodes", "--workers", "1", "--json", *options])
    streams = capsys.readouterr()
    assert code == 0, streams.err
    return json.loads(streams.out)["runs"], streams.err


def held(path: Path, widest: int) -> Mapping[str, list[tuple[float, float, list[tuple[int, int]]]]]:
    """When each job ran, and on which node and position."""
    found: dict[str, list[tuple[float, float, list[tuple[int, int]]]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            gpus = [divmod(int(gpu), widest) for gpu in row["gpus"].split(";")]
            found.setdefault(row["job"], []).append((float(row["start_s"]), float(row["end_s"]), gpus))
    return found


PLAYED = [("slurm", policy) for policy in sorted({*policies(), "packed-sticky"})]
PLAYED += [("pal-rounds", policy) for _, policy in PLAYED if policy != "berth"]


@pytest.mark.parametrize(("mode", "policy"), PLAYED)
def test_every_policy_knows_how_many_gpus_a_node_has(
    mixed: Path, capsys: pytest.CaptureFixture[str], mode: str, policy: str
) -> None:
    play(capsys, "--mode", mode, "--policy", policy, "--placements", "p.csv", "--order", "fifo", *study(repeat=0))

    sizes = list(SIZES.values())
    runs = held(mixed / "p.csv", max(sizes))
    assert len(runs) == 30
    assert all(place < sizes[node] for some in runs.values() for _, _, gpus in some for node, place in gpus)
    events = sorted(
        (moment, sign, gpu)
        for some in runs.values()
        for start, end, gpus in some
        for gpu in gpus
        for moment, sign in ((end, 0), (start, 1))
    )
    busy: set[tuple[int, int]] = set()
    for _, starts, gpu in events:
        assert (gpu in busy) != bool(starts), "a GPU has one job at a time"
        (busy.add if starts else busy.remove)(gpu)


def test_a_job_that_asks_for_more_large_nodes_than_there_are_is_left_open(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "job_id,num_gpus,submit_time,duration,nodes\n"
    (mixed / "trace.csv").write_text(head + "1,16,0,60,2\n2,16,0,60,4\n3,24,0,60,3\n4,25,0,60,\n")

    (one,), said = play(
        capsys, "--mode", "pal-rounds", "--policy", "packed-sticky", *study(repeat=0), "--placements", "p.csv"
    )

    assert one["jobs"] == 3
    assert "1 jobs left out: more GPUs than the cluster's 24" in said
    assert "1 jobs had more nodes, or more GPUs on each, than this cluster" in said
    nodes = {job: len({node for node, _ in gpus}) for job, [(_, _, gpus)] in held(mixed / "p.csv", 8).items()}
    assert nodes == {"1": 2, "2": 4, "3": 4}


def test_leaves_come_from_slurms_own_file(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Study(("trace.csv",), ("packed",), topology="nodes", fabric="topology.conf")

    fleet = cluster.build(asked, 1)

    machines = [machine(KINDS[name], name) for name in fleet.names]
    wanted = Fabric.of(machines, slurm_fabric.read("topology.conf"))
    assert fleet.fabric.leaves == wanted.leaves == ("s1", "s2")
    assert [fleet.fabric.level(pair) for pair in ([0, 1], [0, 2])] == ["leaf", "pod"]
    assert list(fleet.size) == [SIZES[name] for name in fleet.names]

    (mixed / "trace.csv").write_text("job_id,num_gpus,submit_time,duration,nodes\n1,8,0,1000,2\n")
    penalty = (*study(locality_penalty="leaf=1.2,pod=1.5,any=2"), "--policy", "berth")
    assert [
        play(capsys, *penalty, *options)[0][0]["avg_jct_s"]
        for options in (study(fabric="topology.conf"), ("--nodes-per-leaf", "3"), ())
    ] == pytest.approx([1200.0, 1200.0, 2000.0])


def test_leaves_by_number_and_by_file_are_not_mixed(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (("--topology", "nodes", "--nodes-per-leaf", "2"), ("--nodes", "4", "--gpus-per-node", "4")):
        assert main(["simulate", "trace.csv", *options, *study(fabric="topology.conf")]) == 2
        assert "fabric says which nodes of --topology share a leaf" in capsys.readouterr().err
    assert main(["simulate", "trace.csv", "--topology", "nodes", *study(fabric="none.conf")]) in {1, 2}
    assert "none.conf" in capsys.readouterr().err
    Path("other.conf").write_text("SwitchName=s1 Nodes=elsewhere\n")
    assert main(["simulate", "trace.csv", "--topology", "nodes", *study(fabric="other.conf")]) == 2
    assert "fabric other.conf: it names no leaf of the nodes in nodes" in capsys.readouterr().err


def test_classes_without_scores_and_scores_without_jobs_are_said(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"big-a,{place},,{name},1.1,1,0,\n" for place in range(8) for name in ("compute", "mixd")]
    (mixed / "scores.csv").write_text(
        "# berth-scores/1\nnode,position,uuid,class,score,runs,spread,at\n" + "".join(lines)
    )

    _, said = play(capsys, "--policy", "packed", "--scores", "scores.csv")
    assert "30 jobs are of class mixed, which no score table has: to them all GPUs are alike" in said
    assert "0 jobs are of class mixd; did you mean mixed?, which a score table has" in said
    assert "compute" not in said
    assert "class" not in play(capsys, "--policy", "packed")[1]


def test_scores_of_a_mixed_cluster_belong_to_its_nodes(mixed: Path) -> None:
    asked = Study(("trace.csv",), ("packed",), topology="nodes", scores=("scores.csv",))
    (mixed / "scores.csv").write_text(
        "# berth-scores/1\nnode,position,uuid,class,score,runs,spread,at\n"
        "small-b,3,,mixed,1.5,1,0,\nbig-b,7,,mixed,1.3,1,0,\n"
    )

    fleet = cluster.build(asked, 1)

    table = fleet.scores["mixed"]
    assert table.shape == (4, 8)
    at = {name: place for place, name in enumerate(fleet.names)}
    assert (table[at["small-b"], 3], table[at["big-b"], 7], table.sum()) == (1.5, 1.3, pytest.approx(32.8))


def test_equal_nodes_are_a_special_case() -> None:
    plan = world.Layout(3, 4, nodes_per_leaf=2)
    pattern = world.all_to_all("n0", 4)
    names = ["n0", "n1", "n2"]

    one, other = world.build(plan), world.build_of(dict.fromkeys(names, pattern), world.fabric_of(plan, names))

    assert one.names == other.names
    assert np.array_equal(one.full, other.full)
    assert np.array_equal(one.fabric.leaf, other.fabric.leaf)


RECORDED = Path(__file__).parents[3] / "data"
"""Four nodes of 8 GPUs, two users, jobs of all fates: `sacct` of the test cluster as docs/research/simulate.md asks."""


@pytest.mark.parametrize(("slurm", "jobs", "never"), [("24.11", 53, 3), ("26.05", 50, 6)])
def test_the_accounting_of_a_real_cluster_is_played(
    capsys: pytest.CaptureFixture[str], slurm: str, jobs: int, never: int
) -> None:
    trace, options = str(RECORDED / f"slurm-{slurm}" / "sacct"), ("--nodes", "4", "--gpus-per-node", "8")
    once = ("--seed", "1", "--shift", "0", "--workers", "1", "--json")

    # The cluster ran with bf_interval=2.
    assert main(["simulate", trace, *options, *once, "--policy", "slurm", "--bf-interval", "2"]) == 0

    streams = capsys.readouterr()
    simulated, recorded = json.loads(streams.out)["runs"]
    assert (simulated["policy"], recorded["policy"]) == ("slurm", "recorded")
    assert simulated["jobs"] == recorded["jobs"] == jobs
    assert simulated["killed"] == 2, "as many as ran into their limit"
    assert f"2 jobs left out: no GPUs\nberth simulate: {never} jobs left out: never ran\n" in streams.err
    assert 0.7 <= simulated["avg_wait_s"] / recorded["avg_wait_s"] <= 1.3
    assert 0.8 <= simulated["makespan_s"] / recorded["makespan_s"] <= 1.25


def test_recorded_jobs_keep_what_slurm_wrote() -> None:
    trace = read_traces([str(RECORDED / "slurm-26.05" / "sacct")])

    by_name = {(job.name, job.user): job for job in trace.jobs}
    assert (by_name["two-nodes", "alice"].gpus, by_name["two-nodes", "alice"].nodes) == (8, 2)
    assert by_name["odd|name `x`, y", "bob"].gpus == 1, "Slurm does not quote its own mark in a name"
    assert by_name["nolimit", "bob"].limit is None
    assert by_name["held", "alice"].submit == 20.0, "it was let go after 6 s, and does not wait for GPUs before"
    assert sum(job.name == "array" for job in trace.jobs) == 8, "array tasks are jobs of their own"
