# SPDX-License-Identifier: Apache-2.0
"""What berthd knows of machines and fabric, from their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policy.cluster.fleet import build_fleet
from policy.daemon.hear.machines import others
from policy.daemon.known import topologies
from policy.daemon.known.fleets import Fleets
from policy.daemon.known.topologies import Topologies
from policy.formats.slurm_facts import Memory, PartitionFacts
from policy.site.config import fabric_file, load
from tests.unit.policy_world import machine, reading
from tests.unit.policy_world import node as slurm_node
from topology import files
from topology.network.fabric import NOBODY

TREE = "SwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Nodes=n[3-4]\nSwitchName=top Switches=s[0-1]\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's folder with a tree of two leaves, berth.conf beside it, and topology files of n1 to n4."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.delenv("BERTH_CONF", raising=False)
    monkeypatch.setattr(topologies, "PATIENCE", 0)
    (tmp_path / "berth.conf").write_text(f'[berthd]\ntopology_dir = "{tmp_path}/nodes"\n')
    (tmp_path / "topology.conf").write_text(TREE)
    (tmp_path / "nodes").mkdir()
    for number in range(1, 5):
        files.dump(machine(f"n{number}", "h100"), tmp_path / "nodes" / f"n{number}.json")
    return tmp_path


def of(slurm: Path) -> Topologies:
    """What berthd has after its first pass."""
    config = load(slurm / "berth.conf")
    found = Topologies(config.topology_dir, config.fabric)
    assert found.refresh()
    return found


def test_files_and_slurms_tree_are_read(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = of(slurm)
    assert list(found.machines) == ["n1", "n2", "n3", "n4"]
    assert found.fabric.leaf.tolist() == [0, 0, 1, 1]
    assert "4 topology files" in capsys.readouterr().err
    assert not found.refresh()


def test_what_changes_while_berthd_runs_is_seen(slurm: Path) -> None:
    found = of(slurm)
    (slurm / "topology.conf").write_text("SwitchName=all Nodes=n[1-4]\n")
    assert found.refresh()
    assert found.fabric.leaf.tolist() == [0, 0, 0, 0]
    files.dump(machine("n5", "h100"), slurm / "nodes" / "n5.json")
    assert found.refresh()
    assert "n5" in found.machines
    assert not found.refresh()


def test_looking_for_changes_takes_a_small_part_of_the_time(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topologies, "PATIENCE", 1_000_000)
    found = of(slurm)
    files.dump(machine("n5", "h100"), slurm / "nodes" / "n5.json")
    assert not found.refresh()
    assert "n5" not in found.machines


def test_a_broken_fabric_costs_the_leaves_only(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "topology.conf").write_text("SwitchNam=s0 Nodes=n[1-2]\n")
    found = of(slurm)
    assert len(found.machines) == 4
    assert found.fabric.leaves == ()
    assert "line 1: there is no key SwitchNam; did you mean SwitchName?" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said_and_comes_later(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Topologies(slurm / "later")
    assert found.refresh()
    assert "cannot read the topology directory" in capsys.readouterr().err
    (slurm / "nodes").rename(slurm / "later")
    assert found.refresh()
    assert len(found.machines) == 4


def test_a_folder_that_is_away_for_a_moment_takes_no_node_its_place(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm's folder often lies on a network file system, and a job that comes meanwhile is left to Slurm for good."""
    found = of(slurm)
    (slurm / "nodes").rename(slurm / "away")
    found.refresh()
    assert len(found.machines) == 4
    assert "cannot read the topology directory" in capsys.readouterr().err

    (slurm / "away" / "n4.json").unlink()
    (slurm / "away").rename(slurm / "nodes")
    assert found.refresh()
    assert list(found.machines) == ["n1", "n2", "n3"]


def test_berth_conf_names_the_fabric_or_switches_it_off(slurm: Path) -> None:
    assert fabric_file(load(slurm / "berth.conf").fabric) == slurm / "topology.conf"
    (slurm / "topology.yaml").write_text("[]")
    assert fabric_file("") == slurm / "topology.yaml"
    assert fabric_file("none") is None
    assert fabric_file("/etc/fabric.conf") == Path("/etc/fabric.conf")
    (slurm / "topology.yaml").unlink()
    (slurm / "topology.conf").unlink()
    assert fabric_file("") is None


def test_the_fleet_has_the_fabric_in_slurms_order(slurm: Path) -> None:
    """Slurm lists a node without a topology file too, and in an order of its own."""
    found = of(slurm)
    nodes = [slurm_node(name) for name in ("n4", "login", "n1")]
    fleet = build_fleet(
        nodes,
        [PartitionFacts("gpu", default=True)],
        found.machines,
        Memory(),
        memory_counts=False,
        fabric=found.fabric,
    )
    assert fleet.fabric.names == fleet.names == ("n4", "login", "n1")
    assert fleet.fabric.leaf.tolist() == [1, NOBODY, 0]
    assert fleet.fabric.level([0, 2]) == "pod"
    assert fleet.fabric.level([0, 1]) == "any"


def test_a_node_without_a_file_is_told_once_while_other_files_come_in(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleets = Fleets(load(slurm / "berth.conf"))
    nodes = [slurm_node(name) for name in ("n1", "n5", "n6")]

    def told() -> list[str]:
        fleets.of(reading(nodes))
        lines = capsys.readouterr().err.splitlines()
        return [name for name in ("n1", "n5", "n6") for line in lines if "[BERTH-639]" in line and name in line]

    assert told() == ["n5", "n6"]
    files.dump(machine("n5", "h100"), slurm / "nodes" / "n5.json")
    assert told() == []
    (slurm / "nodes" / "n5.json").unlink()
    assert told() == ["n5"]


def test_a_node_with_other_gpus_than_its_file_is_slurms_until_a_file_fits(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came back under its name: topology and scores were those of other GPUs."""
    fleets = Fleets(load(slurm / "berth.conf"))
    nodes = [slurm_node("n1"), slurm_node("n4")]
    before = machine("n1", "h100")
    files.dump(before, slurm / "nodes" / "n1.json")
    uuids = tuple(gpu.uuid for gpu in before.gpus)
    as_ever = fleets.of(reading(nodes), told={"n1": uuids})
    assert as_ever.ready.tolist() == [True, True]
    # On a large cluster a fleet takes a second, and after a restart of berthd each node tells its GPUs.
    assert fleets.of(reading(nodes), told={"n1": uuids, "n9": uuids}) is as_ever

    swapped = (*uuids[:2], *reversed(uuids[2:]))
    fleet = fleets.of(reading(nodes), told={"n1": swapped, "n9": uuids})

    assert fleet.ready.tolist() == [False, True]
    assert fleet.not_ready == {0: "n1 has other GPUs than its topology file; run berth topo discover there"}
    assert "n1 has other GPUs than its topology file" in capsys.readouterr().err
    # What is known of the node's GPUs has not changed, and is not logged again.
    assert fleets.of(reading(nodes), told={"n1": swapped, "n9": uuids}) is fleet
    by_place = {gpu.position: uuid for gpu, uuid in zip(before.gpus, swapped, strict=True)}
    now = replace(before, gpus=tuple(replace(gpu, uuid=by_place[gpu.position]) for gpu in before.gpus))
    files.dump(now, slurm / "nodes" / "n1.json")
    assert fleets.of(reading(nodes), told={"n1": swapped}).ready.tolist() == [True, True]


def test_a_node_whose_gpus_are_cut_is_not_compared() -> None:
    whole = machine("n1", "h100")
    cut = replace(whole, gpus=tuple(replace(gpu, mig=True) for gpu in whole.gpus))

    assert others({"n1": cut}, {"n1": ("GPU-1",)}) == frozenset()
