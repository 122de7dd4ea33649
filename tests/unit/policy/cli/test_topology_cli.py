# SPDX-License-Identifier: Apache-2.0
"""`berth topo`: what an admin types and sees."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policy.cli import topo
from policy.formats.errors import BerthError, UsageError
from tests.fakes import nvml as fake
from tests.strategies import make_machine
from topology import files
from topology.errors import TopologyError, TopologyFileError
from topology.model import Machine

CALL = """
import argparse
from policy.cli import topo
parser = argparse.ArgumentParser()
topo.register(parser.add_subparsers())
args = parser.parse_args()
sys.exit(args.run(args))
"""

Berth = Callable[..., int]


def discover(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`berth topo discover` in a process that sees a simulated machine."""
    return subprocess.run(
        [sys.executable, "-c", "import sys" + CALL, "topo", "discover", *arguments],
        env=fake.environment(machine),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def berth() -> Berth:
    def call(*arguments: str) -> int:
        parser = argparse.ArgumentParser()
        topo.register(parser.add_subparsers())
        args = parser.parse_args(["topo", *arguments])
        return int(args.run(args))

    return call


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Topology files of two alike nodes and one other."""
    for node, counts in (("n1", {(0, 1): 4}), ("n2", {(0, 1): 4}), ("n3", {})):
        machine = make_machine(2, counts)
        files.dump(Machine(node, "a6000", machine.gpus, machine.links, machine.paths), tmp_path / f"{node}.json")
    return tmp_path


def test_discover_writes_the_file_and_says_in_one_line_what_it_found(tmp_path: Path) -> None:
    done = discover(fake.MACHINES / "a6000-pairs", "--node", "n7", "--output", str(tmp_path / "n7.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "n7: 8 GPUs, a6000, 4 of 28 pairs joined by NVLink, direct, driver 550.54.15\n"
    assert files.load(tmp_path / "n7.json").node == "n7"


def test_discover_tells_problems_and_a_degraded_machine_by_its_status(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.write_text((fake.MACHINES / "dgx-1v").read_text() + "nvlink 0:0 down\n")
    done = discover(machine, "--node", "n1", "--output", "-")
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == ["GPU 0: NVLink 0 is down", "GPU 1: NVLink 0 is down"]
    assert "n1: GPU 0: NVLink 0 is down" in done.stderr.splitlines()


@pytest.mark.parametrize("output", ["n1.json", "missing/n1.json"])
def test_discover_fails_with_one_line_and_writes_nothing(tmp_path: Path, output: str) -> None:
    machine = fake.MACHINES / "l40s" if "missing" in output else tmp_path / "no-machine"
    done = discover(machine, "--output", str(tmp_path / output))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("berth topo discover: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / output).exists()


def test_show_prints_alike_nodes_once(berth: Berth, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert berth("show", "--topology-dir", str(directory)) == 0
    text = capsys.readouterr().out
    assert text.count("GPU0  X     NV4") == 1
    assert "and 1 more like it: n2" in text
    assert "island of GPUs 0,1: 103.1 GB/s on the weakest pair" in text
    assert "GPU0  X     NODE  nvidia0" in text


def test_many_nodes_that_are_alike_are_folded(berth: Berth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = make_machine(2, {(0, 1): 4})
    for number in range(1, 200):
        name = f"gpu{number}"
        files.dump(Machine(name, "a6000", machine.gpus, machine.links, machine.paths), tmp_path / f"{name}.json")

    assert berth("show", "--topology-dir", str(tmp_path)) == 0
    assert "and 198 more like it: gpu[2-199]" in capsys.readouterr().out


def test_show_takes_nodes_and_files(berth: Berth, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert berth("show", "--json", "--topology-dir", str(directory), "n3", str(directory / "n1.json")) == 0
    shown = json.loads(capsys.readouterr().out)["nodes"]
    assert [(machine["node"], machine["islands"]) for machine in shown] == [("n3", []), ("n1", [[0, 1]])]


def test_show_of_a_node_without_a_file_is_an_error_with_its_name(berth: Berth, directory: Path) -> None:
    with pytest.raises(TopologyFileError, match=r"n9\.json"):
        berth("show", "--topology-dir", str(directory), "n9")


def test_an_empty_directory_says_what_to_do(berth: Berth, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run berth topo discover"):
        berth("show", "--topology-dir", str(tmp_path))


def test_show_has_columns_for_nics_and_says_which_are_nearest(berth: Berth, capsys: pytest.CaptureFixture[str]) -> None:
    assert berth("show", "machine:dgx-1v") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[8:12] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert lines[4].split()[9:13] == ["PHB", "PIX", "SYS", "SYS"]
    assert "nearest NICs: GPUs 0,1: mlx5_0; GPUs 2,3: mlx5_1; GPUs 4,5: mlx5_2; GPUs 6,7: mlx5_3" in lines
    assert any(line.startswith("NICs: mlx5_0 12.5 GB/s infiniband, ") for line in lines)


def test_show_tells_the_nvlink_domain_of_a_rack(berth: Berth, capsys: pytest.CaptureFixture[str]) -> None:
    assert berth("show", "machine:gb200-nvl72") == 0
    text = capsys.readouterr().out
    assert text.count("NVLink domain: ") == 1
    assert "and 17 more like it" in text


def test_show_reads_what_nvidia_smi_printed(berth: Berth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t8-15\t1\n"
    (tmp_path / "n8.txt").write_text(matrix)
    assert berth("show", str(tmp_path / "n8.txt")) == 0
    assert capsys.readouterr().out.startswith("n8: 2 GPUs, ")
    with pytest.raises(TopologyFileError, match=r"cannot read .*n9\.txt"):
        berth("show", str(tmp_path / "n9.txt"))


def test_an_unknown_machine_is_an_error_with_the_nearest(berth: Berth) -> None:
    with pytest.raises(TopologyError, match='did you mean "dgx-a100"'):
        berth("show", "machine:dgx-a10")


def test_berth_conf_says_where_the_files_are(
    berth: Berth,
    directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = tmp_path_factory.mktemp("conf") / "berth.conf"
    conf.write_text(f'[berthd]\ntopology_dir = "{directory}"\n')
    monkeypatch.setenv("BERTH_CONF", str(conf))
    assert berth("show", "n3") == 0
    assert capsys.readouterr().out.startswith("n3: 2 GPUs")


def test_draw_writes_a_picture_and_says_where(
    berth: Berth,
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert berth("draw", "--topology-dir", str(directory), "n1") == 0
    assert capsys.readouterr().out == "n1.svg written\n"
    written = (tmp_path / "n1.svg").read_text()
    assert berth("draw", "--output", "-", str(directory / "n1.json")) == 0
    assert capsys.readouterr().out == written


def test_draw_of_a_cluster_takes_leaves_and_pods_from_slurm(
    berth: Berth, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=leafA Nodes=n[1-2]\nSwitchName=leafB Nodes=n3\nSwitchName=spine Switches=leafA,leafB\n")
    arguments = ("draw", "--cluster", "--topology-dir", str(directory), "--output", "-")
    assert berth(*arguments, "--slurm-topology", str(conf)) == 0
    text = capsys.readouterr().out
    assert all(f">{words}<" in text for words in ("leafA", "leafB", "pod spine", "1 pod, 2 leaves", "n1", "n2", "n3"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["draw"], "name the node to draw"),
        (["draw", "machine:dgx-1v", "machine:l40s"], "a picture shows one node, and 2 were named"),
        (["draw", "machine:dgx-1v", "--slurm-topology", "x"], "belongs to --cluster"),
    ],
)
def test_draw_called_in_a_wrong_way(berth: Berth, arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        berth(*arguments)


def test_draw_to_a_place_that_is_not_there(berth: Berth, tmp_path: Path) -> None:
    with pytest.raises(BerthError, match=r"cannot write .*x\.svg: No such file"):
        berth("draw", "machine:l40s", "--output", str(tmp_path / "none" / "x.svg"))
