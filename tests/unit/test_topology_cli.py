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
from policy.errors import UsageError
from tests.fakes import nvml as fake
from tests.strategies import make_machine
from topology import files
from topology.errors import TopologyFileError
from topology.model import Gpu, Machine
from topology.writers.slurm import cores, render

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


def test_show_takes_nodes_and_files(berth: Berth, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert berth("show", "--json", "--topology-dir", str(directory), "n3", str(directory / "n1.json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(machine["node"], machine["islands"]) for machine in shown] == [("n3", []), ("n1", [[0, 1]])]


def test_show_of_a_node_without_a_file_is_an_error_with_its_name(berth: Berth, directory: Path) -> None:
    with pytest.raises(TopologyFileError, match=r"n9\.json"):
        berth("show", "--topology-dir", str(directory), "n9")


def test_an_empty_directory_says_what_to_do(berth: Berth, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run berth topo discover"):
        berth("show", "--topology-dir", str(tmp_path))


def test_export_gives_each_gpu_a_type_shards_and_a_seat(
    berth: Berth, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert berth("export", "--slurm", "--topology-dir", str(directory), "--nodes", "n[1-2]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "GresTypes=gpu,shard,seat" in lines
    gres = "gpu:g0:1,gpu:g1:1,shard:g0:100,shard:g1:100,seat:g0:1,seat:g1:1"
    assert f"NodeName=n[1-2] Gres={gres} Feature=a6000" in lines
    assert lines[lines.index("# gres.conf") + 1 :] == [
        "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0 Links=-1,4",
        "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1 Links=4,-1",
        "NodeName=n[1-2] Name=shard Type=g0 Count=100 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Type=g1 Count=100 File=/dev/nvidia1",
        "NodeName=n[1-2] Name=seat Type=g0 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=seat Type=g1 File=/dev/nvidia1",
    ]


def test_export_of_one_file_can_be_redirected_as_it_is(
    berth: Berth, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert berth("export", "--slurm", "--topology-dir", str(directory), "--only", "gres.conf") == 0
    assert all(line.startswith("NodeName=") for line in capsys.readouterr().out.splitlines())


def test_device_files_follow_minor_numbers_where_a_gpu_is_missing() -> None:
    gpus = (Gpu(0, 0, "a", cpus="0-3"), Gpu(1, 2, "b", cpus="4-7"))
    lines = render([Machine("n1", "l40s", gpus)]).gres_conf
    assert lines[1] == "NodeName=n1 Name=gpu Type=g1 File=/dev/nvidia2 Cores=4-7"


@pytest.mark.parametrize(
    ("cpus", "threads", "expected"),
    [
        (["0-7", "8-15"], None, ["0-7", "8-15"]),
        (["0-19,40-59", "20-39,60-79"], None, ["0-19", "20-39"]),
        (["0-19,40-59", "20-39,60-79"], 2, ["0-19", "20-39"]),
        # Threads of a core side by side.
        (["0-7", "8-15"], 4, ["0-1", "2-3"]),
        # Near to all: nothing to say.
        (["0-63", "0-63"], None, ["", ""]),
        (["", ""], None, ["", ""]),
        # Sockets interleaved: the kernel's numbers do not tell Slurm's.
        (["6,14,22,30", "4,12,20,28"], None, None),
        (["0-7", "8-14"], 2, None),
    ],
)
def test_core_numbers(cpus: list[str], threads: int | None, expected: list[str] | None) -> None:
    assert cores(cpus, threads) == expected


def test_export_leaves_cores_out_where_it_is_not_sure_and_says_so() -> None:
    gpus = (Gpu(0, 0, "a", cpus="6,14,22,30"), Gpu(1, 1, "b", cpus="4,12,20,28"))
    lines = render([Machine("n1", "l40s", gpus)])
    assert not any("Cores=" in line for line in lines.gres_conf)
    assert "node n1: Cores= was left out" in lines.notes[0]
