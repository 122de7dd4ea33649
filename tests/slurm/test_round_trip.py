# SPDX-License-Identifier: Apache-2.0
"""Starts a Slurm with what `berth topo export` writes, and reads it back.

The exported lines go into the configuration of daemons of our own as they are.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import main
from policy.cli.topo.export import read_layouts
from topology import files
from topology.hostlist import expand
from topology.model import Gpu, Link, Machine
from topology.providers import slurm_fabric
from topology.writers.slurm_cores import CpuLayout

from .harness import Slurm, until
from .own_slurm import OwnSlurm
from .target import Container

#: Written by hand: a part of a socket, which Slurm refuses. Once it no longer does, the exporter can say more.
PART_OF_A_SOCKET = "part"


@dataclass(frozen=True, slots=True)
class Case:
    """A machine, how Slurm counts its CPUs, and the Cores= that each GPU must come back with."""

    machine: Machine
    sockets: int
    cores: int
    threads: int
    expected: tuple[str, ...]

    @property
    def layout(self) -> CpuLayout:
        return CpuLayout(self.sockets, self.cores, self.threads)

    @property
    def slurmd_c(self) -> str:
        """Returns a node's hardware as `slurmd -C` prints it."""
        cpus = self.sockets * self.cores * self.threads
        return (
            f"NodeName={self.machine.node} CPUs={cpus} Boards=1 SocketsPerBoard={self.sockets}"
            f" CoresPerSocket={self.cores} ThreadsPerCore={self.threads} RealMemory=100"
        )


def made_up(node: str, cpus: list[str], minors: list[int] | None = None, links: tuple[Link, ...] = ()) -> Machine:
    """A machine with an odd numbering of CPUs or devices."""
    gpus = tuple(
        Gpu(position, minor, f"GPU-00000000-0000-0000-0000-{position:012x}", cpus=near)
        for position, (minor, near) in enumerate(zip(minors or range(len(cpus)), cpus, strict=True))
    )
    return Machine(node, "l40s", gpus, links)


def odd_cases() -> list[Case]:
    """Machines with features that the cluster's own do not have."""
    # Two NUMA nodes in a socket: Slurm wants the whole socket.
    halves = made_up("halves", ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"])
    # Threads of a core side by side, as in virtual machines, and two GPUs gone; two such nodes share their lines.
    twins = [made_up(f"twin{k}", ["0-7", "8-15"], [1, 3], (Link(0, 1, 4, 56.25),)) for k in (1, 2)]
    # Cores dealt to the sockets in turn.
    dealt = made_up("dealt", ["0,2,4,6", "1,3,5,7", "1,3,5,7"])
    # Near to two sockets of four: Slurm cannot say that.
    wide = made_up("wide", ["0-7", "8-15"])
    return [
        Case(halves, 2, 8, 2, ("0-7", "0-7", "8-15", "8-15")),
        *(Case(twin, 2, 4, 2, ("0-3", "4-7")) for twin in twins),
        Case(dealt, 2, 4, 1, ("0-3", "4-7", "4-7")),
        Case(wide, 4, 4, 1, ("", "")),
        Case(made_up("single", ["0-7", "0-7"]), 1, 8, 1, ("", "")),
    ]


def export(*arguments: object) -> str:
    """Returns what `berth topo export` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["topo", "export", *map(str, arguments)]) == 0
    return printed.getvalue()


# The GPUs

Own = tuple[OwnSlurm, dict[str, Case]]


@pytest.fixture(scope="module")
def gpus(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    """A Slurm that runs with the exported lines, and the machines behind it."""
    # The simulated machines have 16 CPUs, half of them near each socket; their GPUs' NUMA nodes are the sockets.
    cases = [
        Case(machine, 2, 8, 1, tuple("0-7" if gpu.numa == 0 else "8-15" for gpu in machine.gpus))
        for machine in slurm.machines.values()
    ] + odd_cases()
    folder = tmp_path_factory.mktemp("topology")
    counts = folder / "slurmd-C"
    counts.write_text("".join(f"{case.slurmd_c}\nUpTime=0-00:01:00\n" for case in cases))
    for case in cases:
        files.dump(case.machine, folder / f"{case.machine.node}.json")
    own = OwnSlurm(slurm, "/tmp/round-trip-gpus", 17800)
    try:
        lines = [
            export("--slurm", "--only", part, "--topology-dir", folder, "--slurmd-c", counts)
            for part in ("slurm.conf", "gres.conf")
        ]
        start_with(own, cases, *lines)
        yield own, {case.machine.node: case for case in cases}
    finally:
        own.stop()


def start_with(own: OwnSlurm, cases: list[Case], slurm_conf: str, gres_conf: str) -> None:
    """Starts with these lines, and a node of which Slurm must not like the cores; wait until all have registered."""
    exported: dict[str, str] = {}
    for names, words in re.findall(r"^NodeName=(\S+) (.*)", slurm_conf, re.MULTILINE):
        exported |= dict.fromkeys(expand(names), words)
    nodes = {
        case.machine.node: f"Sockets={case.sockets} CoresPerSocket={case.cores} ThreadsPerCore={case.threads}"
        f" {exported[case.machine.node]}"
        for case in cases
    }
    nodes[PART_OF_A_SOCKET] = "Sockets=2 CoresPerSocket=8 Gres=gpu:g0:1"
    by_hand = f"NodeName={PART_OF_A_SOCKET} Name=gpu Type=g0 File=/dev/nvidia0 Cores=0-3\n"
    others = re.sub(r"^NodeName=.*\n", "", slurm_conf, flags=re.MULTILINE)
    own.start({"slurm.conf": others, "gres.conf": gres_conf + by_hand}, nodes)
    own.start_nodes(nodes)

    def registered() -> bool:
        found = own.nodes().values()
        return len(found) == len(nodes) and all({"IDLE", "DRAIN"} & set(node["state"]) for node in found)

    try:
        until("every node to register", registered)
    except AssertionError as error:
        log = own.target.bash(f"grep -hE 'error|fatal' {own.folder}/*.log", user="root", check=False).out
        raise AssertionError(f"{error}\n{log}") from None


def test_slurm_reads_back_the_gpus_that_were_exported(gpus: Own) -> None:
    """Types, counts, device files, cores, links, sockets and features; and no node is drained."""
    own, cases = gpus
    nodes = own.nodes()
    differences = []
    for name, case in cases.items():
        said = [*by_controller(case, nodes[name]), *by_node(case, own.ask("slurmd", "-G", "-N", name))]
        differences += [
            f"{name}: {what}: {right!r} expected, Slurm has {found!r}" for what, right, found in said if right != found
        ]
    assert not differences, "\n" + "\n".join(differences)
    assert re.search(r"^GresTypes\s*= gpu,shard,seat$", own.ask("scontrol", "show", "config"), re.MULTILINE)


def test_the_counts_of_a_running_slurm_are_those_that_were_configured(gpus: Own) -> None:
    own, cases = gpus
    found = read_layouts(own.ask("scontrol", "show", "node", "--oneliner"), "scontrol")
    assert {name: found[name] for name in cases} == {name: case.layout for name, case in cases.items()}


def test_slurm_drains_a_node_whose_cores_are_a_part_of_a_socket(gpus: Own) -> None:
    """This is why the exporter writes whole sockets; where it no longer holds, it can write NUMA nodes."""
    own, _ = gpus
    node = own.nodes()[PART_OF_A_SOCKET]
    assert "INVALID_REG" in node["state"]
    assert "doesn't match socket boundaries" in node["reason"]


def by_controller(case: Case, node: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Yields what slurmctld must say of a node: field, right value, found value."""
    near = [f"(S:{int(cores.split('-')[0]) // case.cores})" if cores else "" for cores in case.expected]
    words = [f"gpu:g{k}:1{socket}" for k, socket in enumerate(near)]
    words += [f"shard:g{k}:100{socket}" for k, socket in enumerate(near)]
    words += [f"seat:g{k}:1" for k in range(len(near))]
    yield "state", ["IDLE"], node["state"]
    yield "reason", "", node["reason"]
    yield "features", [case.machine.model], node["active_features"]
    yield from (("gres", *pair) for pair in zip_longest(words, node["gres"].split(",")))


def by_node(case: Case, text: str) -> Iterator[tuple[str, object, object]]:
    """Yields what slurmd must say of each GRES: field, right value, found value."""
    found = {}
    for line in re.findall(r"Gres (Name=.*)", text):
        words = dict(word.split("=", 1) for word in line.split())
        found[words["Name"], words["Type"]] = words
    for gpu, cores in zip(case.machine.gpus, case.expected, strict=True):
        for name, count in (("gpu", "1"), ("shard", "100"), ("seat", "1")):
            words = found.pop((name, f"g{gpu.position}"), {})
            expected = {"Count": count, "Index": str(gpu.minor), "File": f"/dev/nvidia{gpu.minor}"}
            expected["Cores"] = "" if name == "seat" else cores
            expected["Links"] = links_of(case.machine, gpu.position) if name == "gpu" else "(null)"
            for field, value in expected.items():
                yield f"{name}:g{gpu.position} {field}", value, words.get(field, "")
    yield "GRES that were not exported", [], list(found)


def links_of(machine: Machine, position: int) -> str:
    """The NVLinks of a GPU as slurmd prints them."""
    if not machine.links:
        return "(null)"
    joined = {frozenset((link.a, link.b)): link.count for link in machine.links}
    return ",".join(
        "-1" if k == position else str(joined.get(frozenset((k, position)), 0)) for k in range(machine.size)
    )


def test_the_clusters_own_lines_are_those_that_it_exports(slurm: Slurm) -> None:
    """But for Links=, which the cluster has as AutoDetect would find them."""
    if not isinstance(slurm.target, Container):
        pytest.skip("another Slurm has lines of its own")
    exported = slurm.target.run(["berth", "topo", "export", "--slurm", "--only", "gres.conf", "--no-comments"]).out
    configured = slurm.target.run(["cat", "/etc/slurm/gres.conf"]).out

    def lines(text: str) -> list[str]:
        found = re.findall(r"^NodeName=(\S+) (.*?)(?: Links=\S+)?$", text, re.MULTILINE)
        return sorted(f"{node} {words}" for nodes, words in found for node in expand(nodes))

    assert lines(exported) == lines(configured)


# The network

LEAVES = {f"leaf{k}": expand(f"f[{4 * k + 1:02}-{4 * k + 4:02}]") for k in range(4)}
PODS = {"pod0": ("leaf0", "leaf1"), "pod1": ("leaf2", "leaf3")}


@pytest.fixture
def network(tmp_path: Path) -> list[object]:
    """Sixteen nodes; four make a leaf and an NVLink domain, two leaves a pod. The options that export them."""
    for k, node in enumerate(node for leaf in LEAVES.values() for node in leaf):
        machine = Machine(node, "gb200", (Gpu(0, 0, f"GPU-{node}"),), domain=f"rack-{k // 4}.0")
        files.dump(machine, tmp_path / f"{node}.json")
    lines = [f"SwitchName={leaf} Nodes={','.join(nodes)}" for leaf, nodes in LEAVES.items()]
    lines += [f"SwitchName={pod} Switches={','.join(leaves)}" for pod, leaves in PODS.items()]
    (tmp_path / "topology.conf").write_text("\n".join([*lines, "SwitchName=core Switches=pod0,pod1", ""]))
    return ["--topology-dir", tmp_path, "--slurm-topology", tmp_path / "topology.conf"]


def said_by_slurm(slurm: Slurm, plugin: str, files_: Mapping[str, str], *shown: str) -> list[str]:
    """Returns what `scontrol show` says of these configuration files."""
    own = OwnSlurm(slurm, "/tmp/round-trip-network", 17900)
    try:
        own.start(
            {"slurm.conf": f"TopologyPlugin=topology/{plugin}", **files_},
            {node: "CPUs=1" for leaf in LEAVES.values() for node in leaf},
        )
        until("slurmctld to answer", lambda: "UP" in own.ask("scontrol", "ping", check=False))
        return [own.ask("scontrol", "show", what) for what in shown]
    finally:
        own.stop()


@pytest.mark.parametrize("form", ["tree", "block", "yaml"])
def test_slurm_reads_back_the_network_that_was_exported(slurm: Slurm, network: list[object], form: str) -> None:
    if form == "yaml" and slurm.version < (25, 5):
        pytest.skip("topology.yaml came with Slurm 25.05")
    plugin = "block" if form == "block" else "tree"
    name = "topology.yaml" if form == "yaml" else "topology.conf"
    shown = "topoconf" if form == "yaml" else "topology"
    text, blocks = said_by_slurm(slurm, plugin, {name: export("--fabric", form, *network)}, "topology", shown)
    if form != "block":
        found = {
            switch: (int(level), expand(nodes), expand(children))
            for switch, level, nodes, children in re.findall(
                r"SwitchName=(\S+) Level=(\d+) LinkSpeed=\d+ Nodes=(\S+)(?: Switches=(\S+))?", text
            )
        }
        everyone = tuple(node for nodes in LEAVES.values() for node in nodes)
        assert found.pop("berth-root") == (2, everyone, tuple(PODS))
        assert found == {leaf: (0, nodes, ()) for leaf, nodes in LEAVES.items()} | {
            pod: (1, LEAVES[leaves[0]] + LEAVES[leaves[1]], leaves) for pod, leaves in PODS.items()
        }
    if form != "tree":
        # One block a domain, in node order; the names are ours.
        members = re.findall(r"BlockName=\S+ BlockIndex=\d+ Nodes=(\S+)|block: \S+\s+nodes: (\S+)", blocks)
        assert [expand(one or other) for one, other in members] == list(LEAVES.values())


BY_HAND = {
    "tree": {
        "topology.conf": """switchname=leaf1 nodes=f[01-04] # a comment
SwitchName=leaf2 Nodes=f05,f06,f[07-08] LinkSpeed=100
Include more.conf
SwitchName=pod0 Switches=leaf[1-2]
SwitchName=pod1 \\
    Switches=leaf3,leaf4
SwitchName=core Switches=pod[0-1]
""",
        "more.conf": 'SwitchName=leaf3 Nodes="f[09-12]"\nSwitchName=leaf4 Nodes=f[13-16]\n',
    },
    "block": {
        "topology.conf": "".join(f"BlockName=b{k} Nodes={','.join(nodes)}\n" for k, nodes in enumerate(LEAVES.values()))
        + "BlockSizes=4,8,16\n",
    },
}


@pytest.mark.parametrize("plugin", BY_HAND)
def test_slurm_and_our_reader_agree_on_leaves_and_pods(slurm: Slurm, tmp_path: Path, plugin: str) -> None:
    """In topology/tree the switches of level 1 are pods; in topology/block the blocks of the second size are."""
    for name, text in BY_HAND[plugin].items():
        (tmp_path / name).write_text(text)
    ours = slurm_fabric.read(tmp_path / "topology.conf")
    of_pod: dict[str, tuple[str, ...]] = {}
    for leaf in ours.leaves:
        of_pod[leaf.pod] = of_pod.get(leaf.pod, ()) + leaf.nodes

    (said,) = said_by_slurm(slurm, plugin, BY_HAND[plugin], "topology")
    leaves = re.findall(r"(?:SwitchName=(\S+) Level=0 .*|BlockName=(\S+) .*)Nodes=(\S+)", said)
    pods = re.findall(r"(?:Level=1 LinkSpeed=1 Nodes=(\S+)|AggregatedBlock=.* Nodes=(\S+) BlockSize=8)", said)
    assert [(leaf.name, leaf.nodes) for leaf in ours.leaves] == [(a or b, expand(nodes)) for a, b, nodes in leaves]
    assert list(of_pod.values()) == [expand(a or b) for a, b in pods]
