# SPDX-License-Identifier: Apache-2.0
"""Topology files: what is written is read back, what is wrong is named."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.strategies import machines, make_machine
from topology import files
from topology.errors import MachineError, TopologyError, TopologyFileError
from topology.model import Gpu, Link, Machine

# Word for word as docs/develop/formats.md shows it, made whole.
WRITTEN: dict[str, Any] = {
    "format": "berth-topology/1",
    "node": "n1",
    "model": "v100",
    "discovered": {"at": "2026-11-20T21:00:00Z", "by": "nvml", "driver": "550.54.15"},
    "gpus": [
        {"position": 0, "minor": 0, "uuid": "GPU-a", "name": "Tesla V100-SXM2-32GB", "bus_id": "0000:06:00.0",
         "numa": 0, "cpus": "0-7", "memory_mib": 32510, "mig": False},
        {"position": 1, "minor": 1, "uuid": "GPU-b"},
    ],
    "links": [{"a": 0, "b": 1, "count": 2, "gbps": 50.0, "via": "direct"}],
    "paths": [["SELF", "PIX"], ["PIX", "SELF"]],
    "problems": ["GPU 1: NVLink 2 is down"],
}  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    data = copy.deepcopy(WRITTEN)
    target: Any = data
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in parents:
        target = target[part]
    target[last] = value
    return data


@settings(max_examples=examples(50), deadline=None)
@given(machines())
def test_what_is_encoded_decodes_to_the_same(machine: Machine) -> None:
    again = files.decode(json.loads(files.encode(machine)))
    assert again == machine
    assert again.shape == machine.shape


def test_reads_the_documented_form(tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    path.write_text(json.dumps(WRITTEN))
    machine = files.load(path)
    assert machine.gbps == ((0.0, 50.0), (50.0, 0.0))
    assert machine.near == ((6, 5), (5, 6))
    assert machine.gpus[0].memory_mib == 32510
    assert machine.gpus[1] == Gpu(position=1, minor=1, uuid="GPU-b", numa=-1)
    assert machine.problems == ("GPU 1: NVLink 2 is down",)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("modell", "v100", 'there is no key "modell"; did you mean "model"?'),
        ("gpus/0/uid", "x", 'gpus[0]: there is no key "uid"; did you mean "uuid"?'),
        ("links/0/speed", 1, "links[0]: there is no key"),
        ("format", "berth-topology/2", 'the format is "berth-topology/2"; this Berth reads berth-topology/1'),
        ("gpus/0/minor", "0", 'gpus[0]: "minor" should be a whole number, not "0"'),
        ("gpus/0/minor", True, '"minor" should be a whole number, not true'),
        ("gpus/0/mig", 0, '"mig" should be true or false'),
        ("gpus/0", 1, "gpus[0]: an object is expected"),
        ("gpus/1/position", 0, "positions are not 0, 1, 2"),
        ("gpus/1/uuid", "GPU-a", "GPUs 0 and 1 have the same UUID GPU-a; each is expected to have its own"),
        ("gpus", [], '"gpus" is empty; an object for each GPU is expected'),
        ("links/0/b", 7, "a link joins GPUs 0 and 7"),
        ("links/0/gbps", 0, "0.0 GB/s"),
        ("links/0/gbps", float("nan"), "nan GB/s"),
        ("links/0/gbps", float("inf"), "inf GB/s"),
        ("links/0/count", 0, "count is 0"),
        ("links/0/via", "bridge", "it is one of direct, switch"),
        ("paths", [["SELF"]], "not a square of 2"),
        ("paths/0/1", "PXI", '"PXI"; it is one of SELF, PIX'),
        ("paths/0/1", "SYS", 'GPUs 0 and 1 is "SYS", but "PIX" the other way; both directions are expected'),
        ("paths/0/0", "PIX", 'GPUs 0 and 0 is "PIX"; SELF is where a GPU meets itself'),
        ("paths/0", ["SELF", 5], "paths[0]: a list of texts"),
        ("node", "../n1", "is not a node name"),
        ("problems", ["fine", 3], "problems: a list of texts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, path: str, value: object, complaint: str) -> None:
    file = tmp_path / "n1.json"
    file.write_text(json.dumps(changed(path, value)))
    with pytest.raises(TopologyFileError) as caught:
        files.load(file)
    assert str(caught.value).startswith(str(file))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["format", "node", "model", "gpus", "links", "paths"])
def test_a_missing_key_is_named(key: str) -> None:
    data = {name: value for name, value in WRITTEN.items() if name != key}
    with pytest.raises(TopologyFileError, match=f'"{key}" is missing'):
        files.decode(data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["node", "gpus/0", "gpus/0/uuid", "links", "links/0/a", "paths", "paths/0", "problems"]), _json)
def test_any_value_anywhere_is_read_or_refused(path: str, value: object) -> None:
    with contextlib.suppress(TopologyError):
        assert files.decode(changed(path, value)).size == len(WRITTEN["gpus"])


def test_two_entries_for_one_pair_are_refused() -> None:
    with pytest.raises(MachineError, match="node n1: GPUs 0 and 1 are joined by two entries"):
        Machine("n1", "v100", (Gpu(0, 0, "a"), Gpu(1, 1, "b")), (Link(0, 1, 1, 25.0), Link(0, 1, 1, 25.0)))


def test_a_broken_file_costs_its_own_node_only(tmp_path: Path) -> None:
    files.dump(make_machine(2, {(0, 1): 1}), tmp_path / "n1.json")
    (tmp_path / "n2.json").write_text("{")
    (tmp_path / "n3.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "n4.json").write_text((tmp_path / "n1.json").read_text())
    (tmp_path / "notes.txt").write_text("not ours")
    problems: list[TopologyFileError] = []
    assert list(files.load_directory(tmp_path, problems.append)) == ["n1"]
    assert [str(problem).split(":")[0] for problem in problems] == [
        str(tmp_path / name) for name in ("n2.json", "n3.json", "n4.json")
    ]
    assert "n1 stands in an earlier file" in str(problems[-1])


def test_a_directory_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyFileError, match="cannot read the topology directory"):
        files.load_directory(tmp_path / "none")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "n1.json"
    files.dump(make_machine(2, {}), path)
    files.dump(make_machine(4, {(0, 1): 2}), path)
    assert files.load(path).size == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["n1.json"]
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TopologyFileError, match="cannot write"):
        files.dump(make_machine(2, {}), tmp_path / "none" / "n1.json")


def test_nodes_of_equal_shape_share_their_matrices() -> None:
    one, other = (files.decode(copy.deepcopy(WRITTEN) | {"node": node}) for node in ("n1", "n2"))
    assert one.shape is other.shape


def test_files_and_nvml_provider_import_without_what_compute_nodes_lack() -> None:
    code = """
import sys
for heavy in ("numpy", "networkx", "scipy", "msgspec", "ClusterShell"):
    sys.modules[heavy] = None
import topology.files, topology.providers.nvml, topology.writers.slurm, policy.cli.topo
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.dump(files.decode(copy.deepcopy(WRITTEN)), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert files.load(tmp_path / "file").node == "n1"

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TopologyFileError, match="pipe: it is no plain file; name another file"):
        files.dump(files.decode(copy.deepcopy(WRITTEN)), tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
