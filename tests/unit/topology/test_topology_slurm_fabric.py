# SPDX-License-Identifier: Apache-2.0
"""Slurm's topology.conf and topology.yaml: read as Slurm reads them, refused by line, written and read back."""

from __future__ import annotations

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.strategies import make_machine
from topology.errors import TopologyFileError, UnknownError
from topology.model import Machine
from topology.network.fabric import NOBODY, Fabric
from topology.providers.slurm_fabric import SlurmFabric, find, read
from topology.writers import slurm_fabric as writer


def node(name: str, domain: str = "") -> Machine:
    return dataclasses.replace(make_machine(1, {}), node=name, domain=domain)


def conf(folder: Path, text: str) -> SlurmFabric:
    (folder / "topology.conf").write_text(text)
    return read(folder / "topology.conf")


def yaml(folder: Path, text: str, name: str | None = None) -> SlurmFabric:
    (folder / "topology.yaml").write_text(text)
    return read(folder / "topology.yaml", name)


def layout(slurm: SlurmFabric) -> dict[str, tuple[tuple[str, ...], str]]:
    return {leaf.name: (leaf.nodes, leaf.pod) for leaf in slurm.leaves}


# How Slurm's parser reads a file.


def test_reads_lines_as_slurm_does(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("switchname=s2 nodes=b[08-10]")
    text = """
SWITCHNAME = "s1"  nodes=a[1,3-4]x[1-2],c \\
    LinkSpeed=900   # a comment \\
  include more.conf
SwitchName=top Switches=\\
s[1-2]\r
"""
    assert layout(conf(tmp_path, text)) == {
        "s1": (("a1x1", "a1x2", "a3x1", "a3x2", "a4x1", "a4x2", "c"), "top"),
        "s2": (("b08", "b09", "b10"), "top"),
    }


def test_empty_switches_are_allowed(tmp_path: Path) -> None:
    """Skeletons for nodes that register themselves."""
    slurm = conf(tmp_path, "SwitchName=s1\nSwitchName=top Switches=s1\n")
    assert layout(slurm) == {"s1": ((), "top")}


def test_slurm_prefers_the_yaml(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    (tmp_path / "topology.conf").touch()
    assert find(tmp_path) == tmp_path / "topology.conf"
    (tmp_path / "topology.yaml").touch()
    assert find(tmp_path) == tmp_path / "topology.yaml"


BROKEN = {
    "unknown key": ("SwitchName=s1 Node=n1", "line 1", "there is no key Node; did you mean Nodes"),
    "key of another line": ("SwitchName=s1 Nodes=n1\nBlockName=b1 Switches=s1", "line 2", "one kind"),
    "key that may not stand there": ("BlockName=b1 Nodes=n1 LinkSpeed=3", "line 1", "LinkSpeed cannot stand"),
    "no head": ("Nodes=n1", "line 1", "a line begins with"),
    "twice": ("SwitchName=s1 Nodes=n1 Nodes=n2", "line 1", "Nodes stands there twice"),
    "no pair": ("SwitchName=s1 n1", "line 1", 'Key=Value is expected, not "n1"'),
    "two leaves": ("SwitchName=a Nodes=n[1-2]\n#\nSwitchName=b Nodes=n2", "line 3", "n2 is in b, and in a"),
    "defined twice": ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "line 2", "a is defined twice"),
    "loop": ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "line", "has the child"),
    "loop of one": ("SwitchName=a Switches=a", "line 1", "a has the child a"),
    "undefined child": ("SwitchName=a Switches=b", "line 1", "the child b, which no line defines"),
    "both": ("SwitchName=b Nodes=n2\nSwitchName=a Nodes=n1 Switches=b", "line 2", "both switches and nodes"),
    "host list": ("SwitchName=a Nodes=n[1-", "line 1", "is not a host list"),
    "host list backwards": ("SwitchName=a Nodes=n[3-1]", "line 1", "is not a host list"),
    "host list of words": ("SwitchName=a Nodes=n[a-b]", "line 1", "is not a host list"),
    "group": ("SwitchName=a Nodes=@all", "line 1", "is not a host list"),
    "too many": ("SwitchName=a Nodes=n[1-999][1-999]", "line 1", "more than 65536"),
    "block sizes": ("BlockName=b Nodes=n1\nBlockSizes=4,12", "topology.conf", "12 is not 4, the first"),
    "block sizes in words": ("BlockName=b Nodes=n1\nBlockSizes=four", "line 2", "whole numbers"),
    "empty": ("# nothing\n", "topology.conf", "no line of SwitchName"),
    "missing include": ("Include other.conf", "other.conf", "cannot read"),
    "include of itself": ("Include topology.conf", "topology.conf", "includes it in turn"),
    "include with a pattern": ("Include *.conf", "line 1", "plain file name"),
}


@pytest.mark.parametrize(("text", "where", "what"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str, where: str, what: str) -> None:
    with pytest.raises(TopologyFileError) as caught:
        conf(tmp_path, text)
    sentence = str(caught.value)
    assert str(tmp_path) in sentence
    assert where in sentence
    assert what in sentence
    assert "\n" not in sentence


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyFileError, match=r"cannot read .*topology\.conf: No such file"):
        read(tmp_path / "topology.conf")


def test_a_node_that_slurm_does_not_know_is_named(tmp_path: Path) -> None:
    slurm = conf(tmp_path, "SwitchName=a Nodes=node[1-3]\n")
    slurm.check({"node1", "node2", "node3", "login"})
    with pytest.raises(TopologyFileError, match=r"line 1: Slurm has no node node3; did you mean node"):
        slurm.check({"node1", "node2", "login"})


# topology.yaml.

NAMED = """---
- topology: topo1
  cluster_default: false
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]
      - switch: s2
        nodes: node[03-04]
- topology: topo2
  cluster_default: true
  block:
    block_sizes:
      - 4
      - 16
    blocks:
      - block: b1
        nodes: node[01-04]
      - block: b2
        nodes: node[05-08]
- topology: topo3
  flat: true
- topology: topo4
  flat:
    alpha_step_rank: true
- topology: topo5
  ring:
    rings:
      - ring: ring0
        nodes: node[01-08]
- topology: topo6
  torus3d:
    toruses:
      - name: pod1
"""


def test_reads_the_named_topologies_of_a_yaml(tmp_path: Path) -> None:
    """Slurm's man page, topology.yaml(5)."""
    default = yaml(tmp_path, NAMED)
    assert (default.name, default.kind) == ("topo2", "block")
    assert layout(default)["b2"] == (("node05", "node06", "node07", "node08"), "b1..b2")
    assert layout(yaml(tmp_path, NAMED, "topo1")) == {
        "s1": (("node01", "node02"), "sw_root"),
        "s2": (("node03", "node04"), "sw_root"),
    }
    assert [yaml(tmp_path, NAMED, f"topo{i}").kind for i in (3, 4, 5)] == ["flat", "flat", "ring"]


def test_without_a_default_the_first_counts(tmp_path: Path) -> None:
    assert yaml(tmp_path, "- {topology: a, flat: true}\n- {topology: b, flat: true}\n").name == "a"


BROKEN_YAML = {
    "torus": (NAMED, "topo6", "line 35", "no torus3d"),
    "no such name": (NAMED, "topo9", "topology.yaml", 'no topology "topo9" in it, only topo1, topo2'),
    "not yaml": ("- [", None, "topology.yaml", "not YAML"),
    "no list": ("topology: a", None, "line 1", "should be a list"),
    "empty": ("", None, "topology.yaml", "should be a list"),
    "empty list": ("[]", None, "topology.yaml", "no topology in it"),
    "unknown key": ("- topology: a\n  tre: {}", None, "line 2", "no key tre here; did you mean tree"),
    "no name": ("- flat: true", None, "line 1", "topology is missing"),
    "no type": ("- topology: a", None, "line 1", "has none; one of"),
    "two types": ("- topology: a\n  flat: true\n  ring: {rings: []}", None, "line 1", "has ring and flat"),
    "same name": ("- {topology: a, flat: true}\n- {topology: a, flat: true}", None, "yaml", 'are called "a"'),
    "unknown key inside": (
        "- topology: a\n  tree:\n    switches:\n    - switch: s\n      node: n1", None, "line 5", "did you mean nodes",
    ),
    "no switches": ("- topology: a\n  tree: {}", None, "line 2", "switches is missing"),
    "child": ("- topology: a\n  tree:\n    switches:\n    - {switch: s, children: t}", None, "line 4", "the child t"),
    "default in words": ("- {topology: a, cluster_default: maybe, flat: true}", None, "line 1", "true or false"),
    "list for a name": ("- topology: [a]\n  flat: true", None, "line 1", "a single value is expected"),
    "object": ("- topology: a\n  flat: true\n- !!python/object/apply:os.system ['true']", None, "line 3", "keys of"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "name", "where", "what"), BROKEN_YAML.values(), ids=BROKEN_YAML)
def test_a_broken_yaml_is_named_with_its_line(
    tmp_path: Path, text: str, name: str | None, where: str, what: str
) -> None:
    with pytest.raises(TopologyFileError) as caught:
        yaml(tmp_path, text, name)
    sentence = str(caught.value)
    assert str(tmp_path) in sentence
    assert where in sentence
    assert what in sentence
    assert "\n" not in sentence


def test_a_conf_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=n1\n")
    with pytest.raises(TopologyFileError, match=r"names in topology\.yaml only"):
        read(tmp_path / "topology.conf", "a")


# What is written is read back.


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Trees of three levels: pods of leaves of nodes."""
    machines: list[Machine] = []
    lines: list[tuple[str, str, list[str]]] = []
    for pod in range(draw(st.integers(1, 3))):
        leaves = draw(st.integers(1, 3))
        for leaf in range(leaves):
            names = [f"n{len(machines) + i:02}" for i in range(draw(st.integers(1, 4)))]
            machines += [node(name, f"d{pod}{leaf}") for name in names]
            lines.append((f"leaf{pod}-{leaf}", f"pod{pod}", names))
    names_ = tuple(machine.node for machine in machines)
    plain = Fabric.of(machines)
    leaf_of = np.array([i for i, (_, _, names) in enumerate(lines) for _ in names], np.int64)
    pods = tuple(dict.fromkeys(pod for _, pod, _ in lines))
    pod_of = np.array([pods.index(pod) for _, pod, names in lines for _ in names], np.int64)
    return Fabric(names_, plain.domain, leaf_of, pod_of, plain.domains, tuple(leaf for leaf, _, _ in lines), pods)


@settings(max_examples=examples(50), deadline=None)
@given(fabrics())
def test_a_tree_that_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, fabric: Fabric) -> None:
    folder = tmp_path_factory.mktemp("tree")
    machines = [node(name, fabric.domains[d]) for name, d in zip(fabric.names, fabric.domain.tolist(), strict=True)]
    texts = "\n".join(writer.tree_conf(fabric)), "\n".join(writer.yaml({"x": ("block", fabric), "t": ("tree", fabric)}))
    for again in (conf(folder, texts[0]), yaml(folder, texts[1], "t")):
        read_back = Fabric.of(machines, again)
        assert read_back.leaf.tolist() == fabric.leaf.tolist()
        assert read_back.pod.tolist() == fabric.pod.tolist()
        assert (read_back.leaves, read_back.pods) == (fabric.leaves, fabric.pods)
    assert yaml(folder, texts[1]).name == "x"


def test_blocks_are_written_one_a_domain(tmp_path: Path) -> None:
    machines = [node(f"n{i}", f"u.{i // 3}") for i in range(9)] + [node("cpu")]
    text = "\n".join(writer.block_conf(Fabric.of(machines)))
    assert "BlockName=block002 Nodes=n[3-5]" in text
    assert text.endswith("BlockSizes=3,6")
    again = Fabric.of(machines, conf(tmp_path, text))
    assert again.leaf.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, NOBODY]
    assert again.domain.tolist() == again.leaf.tolist()


def test_what_is_not_known_is_not_written() -> None:
    flat = Fabric.flat(("n1",))
    with pytest.raises(UnknownError, match="no leaf is known"):
        list(writer.tree_conf(flat))
    with pytest.raises(UnknownError, match="no node reports an NVLink domain"):
        list(writer.block_conf(flat))


def test_without_pyyaml_a_conf_is_read_and_a_yaml_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert conf(tmp_path, "SwitchName=a Nodes=n1\n").kind == "tree"
    with pytest.raises(TopologyFileError, match=r"topology\.yaml: PyYAML is needed"):
        yaml(tmp_path, NAMED)


@pytest.mark.parametrize(("files", "right"), [(17, True), (18, False)])
def test_a_chain_of_includes_is_followed_seventeen_files_deep(tmp_path: Path, files: int, *, right: bool) -> None:
    """Slurm has no bound of its own; a loop over names that differ has one here."""
    names = ["topology.conf", *(f"{number}.conf" for number in range(1, files))]
    for one, following in pairwise(names):
        (tmp_path / one).write_text(f"Include {following}\n")
    (tmp_path / names[-1]).write_text("SwitchName=s Nodes=n[1-2]\n")
    if right:
        assert layout(read(tmp_path / names[0])) == {"s": (("n1", "n2"), "")}
        return
    with pytest.raises(TopologyFileError, match="includes it in turn"):
        read(tmp_path / names[0])


def test_a_file_that_mixes_kinds_names_the_line_that_began_the_first(tmp_path: Path) -> None:
    lines = "BlockSizes=2\nBlockName=a Nodes=n1\nBlockName=b Nodes=n2\nSwitchName=s Nodes=n3\n"
    with pytest.raises(TopologyFileError) as caught:
        conf(tmp_path, lines)
    path = tmp_path / "topology.conf"
    assert str(caught.value).startswith(f"{path}, line 4: ")
    assert f"but {path}, line 1 began a block" in str(caught.value)
