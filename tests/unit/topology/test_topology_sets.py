# SPDX-License-Identifier: Apache-2.0
"""`berth topo sets`: which node sets could hold a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.main import main
from policy.slurm.by_command import command
from policy.slurm.by_command.recorded import recorded_gateway
from topology import files, machines

DATA = Path(__file__).parents[1] / "data"


def sets(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[dict[str, object]]]:
    main(["topo", "sets", "--json", *arguments])
    found: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)["sets"]
    return found


def test_a_domain_that_spans_nodes_is_one_set(capsys: pytest.CaptureFixture[str]) -> None:
    found = sets(capsys, "machine:gb200-nvl72", "--gpus", "16", "--idle")

    assert [(one["nodes"], one["free_gpus"], one["nodes_needed"]) for one in found["nvlink"]] == [
        ("gb200-nvl72-[01-18]", 72, 4)
    ]
    assert found["node"] == []


def test_leaves_and_pods_come_from_slurms_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(1, 5):
        files.dump(machines.machine("hgx-h100", f"n{number}"), tmp_path / f"n{number}.json")
    fabric = tmp_path / "topology.conf"
    fabric.write_text("SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=top Switches=s[1-2]\n")

    found = sets(
        capsys, "--gpus=16", "--per-node=8", "--idle", f"--topology-dir={tmp_path}", f"--slurm-topology={fabric}"
    )

    assert [(one["name"], one["nodes"]) for one in found["leaf"]] == [("s1", "n[1-2]"), ("s2", "n[3-4]")]
    assert [(one["name"], one["nodes"]) for one in found["pod"]] == [("top", "n[1-4]")]


def test_what_jobs_hold_and_what_is_down_is_not_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = recorded_gateway(DATA / "slurm-24.11")
    reading = gateway.read(ended=False)
    first, second, third = reading.nodes[:3]
    seen = replace(
        reading,
        nodes=(replace(first, gpus_used=0b1111, up=True), replace(second, up=False), replace(third, gpus_used=0)),
    )
    monkeypatch.setattr(command.CommandGateway, "read", lambda *_, **__: seen)
    for node in (first, second, third):
        files.dump(machines.machine("hgx-h100", node.name), tmp_path / f"{node.name}.json")

    found = sets(capsys, "--gpus=2", "--level=node", f"--topology-dir={tmp_path}", "--slurm-topology=none")

    assert [(one["nodes"], one["free_gpus"]) for one in found["node"]] == [(first.name, 4), (third.name, 8)]


def test_the_table_is_cut_unless_all_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "sets", "machine:gb200-nvl72", "--gpus=4", "--level=node", "--idle"]) == 0
    short = capsys.readouterr().out
    main(["topo", "sets", "machine:gb200-nvl72", "--gpus=4", "--level=node", "--idle", "--all"])

    assert "node: 8 more (--all shows them)" in short
    assert capsys.readouterr().out.count("gb200-nvl72-") == 36


def test_no_set_is_exit_status_one_and_a_wrong_demand_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "sets", "machine:l40s", "--gpus=16", "--idle"]) == 1
    assert main(["topo", "sets", "machine:l40s", "--gpus=16", "--per-node=3", "--idle"]) == 2
    assert "16 GPUs, 3 a node" in capsys.readouterr().err
