# SPDX-License-Identifier: Apache-2.0
"""`berth topo export`: right lines, or none and a sentence."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.main import main
from policy.cli.topo import export as topo_export
from policy.formats.errors import FormatError, SlurmError
from topology import files
from topology.errors import UnknownError
from topology.model import Gpu, Link, Machine
from topology.providers.cpus import format_cpus
from topology.writers.slurm import objection, render
from topology.writers.slurm_cores import CpuLayout, cores_of, near_sockets

Export = Callable[..., tuple[int, list[str], list[str]]]

LAYOUT = CpuLayout(sockets=2, cores=8, threads=2)
SLURMD_C = (
    "NodeName={} CPUs=32 Boards=1 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=64000\nUpTime=1\n"
)


def gpu(position: int, **changes: object) -> Gpu:
    known = Gpu(
        position,
        minor=position,
        uuid=f"GPU-e1c23f4d-d7af-d9ac-ac41-{position:012x}",
        name="NVIDIA H100 80GB HBM3",
        cpus="0-7,16-23" if position == 0 else "8-15,24-31",
    )
    return replace(known, **changes)  # type: ignore[arg-type]  # tests name the fields


def node(name: str = "n1", *gpus: Gpu, model: str = "h100") -> Machine:
    return Machine(name, model, gpus or (gpu(0), gpu(1)), (Link(0, 1, 18, 478.116, "switch"),))


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Export:
    """Run the command where no Slurm answers: exit status, lines printed, lines on standard error."""

    def silent(*command: str) -> bytes:
        raise SlurmError(f"{command[0]} is not on PATH")

    monkeypatch.setattr("policy.slurm.by_command.command.run_command", silent)

    def call(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = main(["topo", "export", "--topology-dir", str(tmp_path), *arguments])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return call


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """Topology files of n1 and n2, and what slurmd -C says of both."""
    for name in ("n1", "n2"):
        files.dump(node(name), tmp_path / f"{name}.json")
    counts = tmp_path / "slurmd-C"
    counts.write_text(SLURMD_C.format("n1") + SLURMD_C.format("n2"))
    return counts


def test_each_gpu_gets_a_type_shards_and_a_seat_and_alike_nodes_share_lines(export: Export, two_nodes: Path) -> None:
    code, out, err = export("--slurm", "--no-comments", "--slurmd-c", str(two_nodes))
    gres = "gpu:g0:1,gpu:g1:1,shard:g0:100,shard:g1:100,seat:g0:1,seat:g1:1"
    assert (code, err) == (0, [])
    assert out == [
        "# slurm.conf",
        "GresTypes=gpu,shard,seat",
        f"NodeName=n[1-2] Gres={gres} Feature=h100",
        "# gres.conf",
        "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0 Cores=0-7 Links=-1,18",
        "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1 Cores=8-15 Links=18,-1",
        "NodeName=n[1-2] Name=shard Type=g0 Count=100 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Type=g1 Count=100 File=/dev/nvidia1",
        "NodeName=n[1-2] Name=seat Type=g0 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=seat Type=g1 File=/dev/nvidia1",
    ]


def test_comments_explain_each_block_and_change_nothing_else(export: Export, two_nodes: Path) -> None:
    arguments = ("--slurm", "--only", "gres.conf", "--slurmd-c", str(two_nodes))
    _, explained, _ = export(*arguments)
    _, bare, _ = export(*arguments, "--no-comments")
    assert [line for line in explained if not line.startswith("#")] == bare
    text = "\n".join(line for line in explained if line.startswith("#"))
    for part in (
        "2 x h100",
        "GPU 1 (Linux: CPUs 8-15,24-31): socket 1, which is cores 8-15",
        "Links=",
        "share",
        "guest",
    ):
        assert part in text


def test_nodes_that_differ_have_lines_of_their_own() -> None:
    gone = node("n2", gpu(0), gpu(1, minor=2))
    lines = render([node("n1"), gone], {"n1": LAYOUT, "n2": LAYOUT}, comments=False).gres_conf
    assert [line.split()[0] for line in lines] == ["NodeName=n1"] * 6 + ["NodeName=n2"] * 6
    assert "NodeName=n2 Name=seat Type=g1 File=/dev/nvidia2" in lines


def test_without_cores_no_layout_is_needed(export: Export, two_nodes: Path) -> None:
    code, out, _ = export("--slurm", "--no-cores", "--only", "gres.conf")
    assert code == 0
    assert not any("Cores=" in line for line in out if not line.startswith("#"))


# What is refused

REFUSED = {
    "no GPU": (replace(node(), gpus=(), links=()), "has no GPU"),
    "MIG": (node("n1", gpu(0), gpu(1, mig=True)), "MIG is on at GPU 1, "),
    "place-holder UUID": (
        node("n1", gpu(0), gpu(1, uuid="GPU-n1-1")),
        '"GPU-n1-1" of GPU 1 is a place-holder and no UUID',
    ),
    "no device file": (node("n1", gpu(0, minor=-1), gpu(1)), "device file of GPU 0 is not known, only /dev/nvidiaN"),
    "one minor twice": (node("n1", gpu(0, minor=3), gpu(1, minor=3)), "two GPUs have the device file /dev/nvidia3"),
    "wrong order": (node("n1", gpu(0, minor=1), gpu(1, minor=0)), "not in the order of their device files"),
    "two models": (node("n1", gpu(0), gpu(1, name="NVIDIA L40S")), "differ (h100, l40s); give them one name"),
    "not a feature": (node(model="h100,l40s"), '"h100,l40s" cannot be a node feature'),
    "unknown CPUs": (node("n1", gpu(0), gpu(1, cpus="")), "does not tell the CPUs near GPU 1"),
    "no CPU list": (node("n1", gpu(0), gpu(1, cpus="8-")), '"8-" is not a list of CPUs'),
    "CPUs the layout lacks": (node("n1", gpu(0), gpu(1, cpus="8-15,64-71")), "CPU 71 is near a GPU, but 2 x 8 cores"),
    "half cores": (node("n1", gpu(0), gpu(1, cpus="8-15")), "are not whole cores"),
}


@pytest.mark.parametrize(("machine", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_is_not_wholly_known_gets_no_line(machine: Machine, reason: str) -> None:
    lines = render([machine, node("n2")], {"n1": LAYOUT, "n2": LAYOUT})
    assert list(lines.refused) == ["n1"]
    assert reason in lines.refused["n1"]
    # What is wrong, then what to do.
    assert any(way in lines.refused["n1"] for way in ("berth topo discover", "--slurmd-c"))
    assert not any("n1" in line for line in lines.slurm_conf + lines.gres_conf)
    assert any(line.startswith("NodeName=n2 ") for line in lines.gres_conf)


def test_refusals_are_named_on_standard_error_and_by_the_status(export: Export, two_nodes: Path) -> None:
    files.dump(node("n3", gpu(0, mig=True), gpu(1)), two_nodes.parent / "n3.json")
    (two_nodes.parent / "n4.json").write_text("{")
    code, out, err = export("--slurm", "--slurmd-c", str(two_nodes))
    assert code == 1
    assert any(line.startswith("NodeName=n[1-2] ") for line in out)
    assert len(err) == 2
    assert err[0].startswith("berth topo export: ")
    assert "n4.json: not a topology file" in err[0]
    assert err[1].startswith("berth topo export: n3 was left out: MIG is on at GPU 0")


def test_an_unknown_layout_is_never_guessed(export: Export, two_nodes: Path) -> None:
    two_nodes.write_text(SLURMD_C.format("n2"))
    code, out, err = export("--slurm", "--slurmd-c", str(two_nodes))
    assert code == 1
    assert any(line.startswith("NodeName=n2 ") for line in out)
    (line,) = err
    assert line.startswith("berth topo export: n1 was left out: how Slurm counts its cores is not known")
    assert "--slurmd-c FILE" in line
    # Nobody says anything: nothing is written.
    code, out, err = export("--slurm")
    assert (code, out, len(err)) == (1, [], 2)


def test_one_name_for_different_gpus_is_the_admins_right() -> None:
    mixed = node("n1", gpu(0), gpu(1, name="NVIDIA L40S"), model="mixed")
    assert objection(mixed) == ""
    assert objection(replace(mixed, model="l40s"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slurm", "--nodes", "n1,n9"], "n9 was left out: cannot read"),
        (["--slurm", "--nodes", "n7"], "is about n1; run berth topo discover --node n7"),
    ],
)
def test_nodes_asked_for_by_name_must_be_there(
    export: Export, two_nodes: Path, arguments: list[str], said: str
) -> None:
    (two_nodes.parent / "n7.json").write_text(files.encode(node("n1")))
    code, _, err = export(*arguments, "--no-cores")
    assert code == 1
    assert said in err[0]


def test_calls_that_make_no_sense_are_refused_with_status_2(export: Export, two_nodes: Path, tmp_path: Path) -> None:
    code, _, err = export("--slurm", "--slurmd-c", str(two_nodes / "missing"))
    assert (code, len(err)) == (2, 1)
    (tmp_path / "empty").mkdir()
    code, _, err = export("--slurm", "--topology-dir", str(tmp_path / "empty"))
    assert code == 2
    assert "run berth topo discover" in err[0]


# Sockets

NUMBERINGS = {
    "no SMT": (["0-7", "8-15"], CpuLayout(2, 8), [{0}, {1}]),
    "second threads last": (["0-19,40-59", "20-39,60-79"], CpuLayout(2, 20, 2), [{0}, {1}]),
    "threads side by side": (["0-7", "8-15"], CpuLayout(2, 2, 4), [{0}, {1}]),
    "cores dealt in turn": (["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"], CpuLayout(2, 4, 2), [{0}, {1}]),
    "sixteen NUMA nodes in two sockets": (["0-3,64-67", "60-63,124-127"], CpuLayout(2, 32, 2), [{0}, {1}]),
    "NUMA nodes as sockets": (["0-15,128-143", "112-127,240-255"], CpuLayout(8, 16, 2), [{0}, {7}]),
    "near to all": (["0-31", "0-31"], CpuLayout(2, 8, 2), [{0, 1}, {0, 1}]),
    "two of four": (["0-7", "8-15"], CpuLayout(4, 4), [{0, 1}, {2, 3}]),
}


@pytest.mark.parametrize(("cpus", "layout", "expected"), NUMBERINGS.values(), ids=NUMBERINGS)
def test_sockets_are_found_however_the_cpus_are_numbered(
    cpus: list[str], layout: CpuLayout, expected: list[set[int]]
) -> None:
    assert near_sockets(cpus, layout) == expected


def test_what_several_numberings_explain_differently_is_not_decided() -> None:
    # The second core of the first socket, or, where cores are dealt in turn, the first one of the second.
    with pytest.raises(UnknownError, match="in several ways"):
        near_sockets(["1"], CpuLayout(2, 2))


@given(
    sockets=st.sampled_from([1, 2, 4, 8]),
    cores=st.sampled_from([2, 4, 6, 16]),
    threads=st.sampled_from([1, 2, 4]),
    numa=st.sampled_from([1, 2]),
    in_turn=st.booleans(),
    side_by_side=st.booleans(),
)
def test_cores_are_right_or_refused_on_any_machine(
    *, sockets: int, cores: int, threads: int, numa: int, in_turn: bool, side_by_side: bool
) -> None:
    """A machine is laid out core by core, as hwloc orders them; what the exporter says must be where the CPUs are."""
    layout, whole = CpuLayout(sockets, cores, threads), sockets * cores

    def cpu(socket: int, core: int, thread: int) -> int:
        number = core * sockets + socket if in_turn else socket * cores + core
        return number * threads + thread if side_by_side else thread * whole + number

    parts = [range(part * cores // numa, (part + 1) * cores // numa) for part in range(numa)]
    near = [(socket, part) for socket in range(sockets) for part in parts]
    lists = [format_cpus(cpu(s, core, t) for core in part for t in range(threads)) for s, part in near]
    if numa == 1:
        assert near_sockets(lists, layout) == [{socket} for socket, _ in near]
        return
    # Half a socket can be ambiguous; then nothing is said.
    with contextlib.suppress(UnknownError):
        assert near_sockets(lists, layout) == [{socket} for socket, _ in near]


def test_cores_are_one_whole_socket_or_left_out() -> None:
    assert cores_of(frozenset({3}), CpuLayout(4, 6)) == "18-23"
    assert cores_of(frozenset({0, 1}), CpuLayout(4, 6)) == ""
    assert cores_of(frozenset({0}), CpuLayout(1, 6)) == ""


# Where the counts come from

SOURCES = {
    "slurmd -C": SLURMD_C.format("n1"),
    "boards": "NodeName=n1 CPUs=32 Boards=2 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2",
    "slurm.conf": "# nodes\nNodeName=DEFAULT Sockets=2 CoresPerSocket=8 \\\n ThreadsPerCore=2\nNodeName=n[1-4]",
    "other case": "nodename=n1 SOCKETS=2 corespersocket=8 threadspercore=2",
    "scontrol show node -o": "NodeName=n1 Arch=x86_64 CoresPerSocket=8 CPUAlloc=0 CPUTot=32 Port=6818 "
    "OS=Linux 6.1.0 #1 SMP Debian RealMemory=1 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=2 Comment=Sockets=9",
}


@pytest.mark.parametrize("text", SOURCES.values(), ids=SOURCES)
def test_counts_are_read_as_slurm_writes_them(text: str) -> None:
    assert topo_export.read_layouts(text, "test")["n1"] == LAYOUT


def test_lines_that_tell_nothing_are_skipped_and_wrong_ones_named() -> None:
    assert topo_export.read_layouts("NodeName=n1 CPUs=32\nNodeName=n2 Sockets=2\nUpTime=1\n", "test") == {}
    with pytest.raises(FormatError, match=r"^f: node n1: its sockets, cores and threads are 2, 1, 0, 1"):
        topo_export.read_layouts("NodeName=n1 Sockets=2 CoresPerSocket=0", "f")
    twice = "NodeName=n1 Sockets=2 CoresPerSocket=8\nNodeName=n[1-2] Sockets=2 CoresPerSocket=4"
    with pytest.raises(FormatError, match="node n1 stands there twice"):
        topo_export.read_layouts(twice, "f")


def test_counts_come_from_standard_input_or_from_slurm_itself(
    export: Export, two_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = export("--slurm", "--slurmd-c", str(two_nodes))
    monkeypatch.setattr(sys, "stdin", io.StringIO(two_nodes.read_text()))
    assert export("--slurm", "--slurmd-c", "-") == expected

    def answer(*command: str) -> bytes:
        # slurmctld knows the one, slurmd of this node the other.
        return SLURMD_C.format({"scontrol": "n1", "slurmd": "n2"}[command[0]]).encode()

    monkeypatch.setattr("policy.slurm.by_command.command.run_command", answer)
    monkeypatch.setattr("socket.gethostname", lambda: "n2.example.org")
    assert export("--slurm") == expected


def test_a_large_cluster_of_one_kind_is_written_in_a_moment() -> None:
    machines = [node(f"n{k}") for k in range(2000)]
    lines = render(machines, dict.fromkeys((machine.node for machine in machines), LAYOUT), comments=False)
    assert len(lines.gres_conf) == 6
    assert lines.gres_conf[0].startswith("NodeName=n[0-1999] ")


def test_the_command_starts_without_numpy() -> None:
    code = "import sys, policy.cli.topo.export, topology.writers.slurm; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The network


@pytest.fixture
def racks(tmp_path: Path) -> Path:
    """Topology files of two NVLink domains of two nodes, and the switches above them."""
    for k in range(4):
        files.dump(replace(node(f"n{k}"), domain=f"rack{k // 2}.0"), tmp_path / f"n{k}.json")
    switches = tmp_path / "topology.conf"
    switches.write_text("SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=s Switches=s[0-1]\n")
    return switches


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("tree", ["SwitchName=s0 Nodes=n[0-1]", "SwitchName=s Switches=s[0-1]"]),
        ("block", ["BlockName=block001 Nodes=n[0-1]", "BlockSizes=2,4"]),
        ("yaml", ["- topology: tree", "- topology: block", "        nodes: n[2-3]"]),
    ],
)
def test_the_network_is_written_as_slurm_reads_it(export: Export, racks: Path, form: str, lines: list[str]) -> None:
    code, out, err = export("--fabric", form, "--slurm-topology", str(racks))
    assert (code, err) == (0, [])
    assert set(lines) <= set(out)


def test_yaml_has_only_the_forms_of_which_something_is_known(
    export: Export, racks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_CONF", str(racks.parent / "berth.conf"))
    racks.unlink()
    code, out, _ = export("--fabric", "yaml")
    assert code == 0
    assert [line for line in out if line.startswith("- topology")] == ["- topology: block"]
    # Neither leaves nor domains: a sentence, and no line.
    for k in range(4):
        files.dump(node(f"n{k}"), racks.parent / f"n{k}.json")
    code, out, err = export("--fabric", "yaml")
    assert (code, out, len(err)) == (1, [], 1)
    assert err[0].startswith("berth: error: no tree can be written")


def test_where_machines_and_slurms_file_part_it_is_said(export: Export, racks: Path) -> None:
    racks.write_text("SwitchName=s0 Nodes=n[0,2]\nSwitchName=s1 Nodes=n[1,3]\n")
    code, out, err = export("--fabric", "tree", "--slurm-topology", str(racks))
    assert code == 1
    assert "SwitchName=s0 Nodes=n[0,2]" in out
    assert err
    assert all(line.startswith("berth topo export: ") for line in err)


def test_one_thing_is_exported_at_a_time(export: Export, racks: Path) -> None:
    for arguments in ([], ["--slurm", "--fabric", "tree"], ["--slurm", "--no-cores", "--slurmd-c", str(racks)]):
        assert export(*arguments)[0] == 2
