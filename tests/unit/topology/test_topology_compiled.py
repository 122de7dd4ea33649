"""The compiled cluster: what goes in comes out, and a file that is cut, changed or old is refused by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.strategies import machines, make_machine
from topology import compiled, files
from topology.errors import TopologyFileError
from topology.model import Discovered, Machine, Nic
from topology.network.fabric import NOBODY, Fabric
from topology.providers import slurm_fabric

PAIRS = {(0, 1): 4, (2, 3): 4}


@st.composite
def clusters(draw: st.DrawFn) -> list[Machine]:
    """Nodes of a few kinds, each with UUIDs and a time of discovery of its own."""
    kinds = draw(st.lists(machines(max_gpus=4), min_size=1, max_size=3))
    found = st.none() | st.builds(Discovered, st.sampled_from(["then", "now"]), st.just("nvml"), st.just("550"))
    return [
        dataclasses.replace(
            kind,
            node=f"n{i}",
            gpus=tuple(dataclasses.replace(gpu, uuid=f"GPU-{i}-{gpu.position}") for gpu in kind.gpus),
            domain=draw(st.sampled_from(["", "x.1", "y.2"])),
            discovered=draw(found),
            problems=draw(st.sampled_from([(), ("GPU 0: NVLink 2 is down",)])),
            switches=draw(st.integers(0, 4)),
        )
        for i, kind in enumerate(draw(st.lists(st.sampled_from(kinds), max_size=8)))
    ]


@settings(max_examples=examples(100), deadline=None)
@given(clusters())
def test_machines_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, each: list[Machine]) -> None:
    path = tmp_path_factory.mktemp("compiled") / "cluster"
    fabric = Fabric.of(each)
    compiled.save(path, each, fabric)
    cluster = compiled.load(path)
    assert list(cluster.machines()) == each


def test_nics_and_gpus_keep_all_they_had(tmp_path: Path) -> None:
    machine = dataclasses.replace(
        make_machine(2, {(0, 1): 4}),
        nics=(Nic("mlx5_0", "0000:05:00.0", 0, "infiniband", 50.0),),
        nic_paths=(("PIX",), ("SYS",)),
        problems=("GPU 1: NVLink 2 is down",),
    )
    compiled.save(tmp_path / "c", [machine], Fabric.of([machine]))
    assert list(compiled.load(tmp_path / "c").machines()) == [machine]


def some(count: int = 3) -> list[Machine]:
    plain = make_machine(4, PAIRS)
    return [
        dataclasses.replace(
            plain,
            node=f"n{i}",
            gpus=tuple(dataclasses.replace(gpu, uuid=f"GPU-{i}-{gpu.position}") for gpu in plain.gpus),
            discovered=Discovered(f"2026-11-20T21:00:{i:02}Z", "nvml"),
        )
        for i in range(count)
    ]


def test_the_fabric_comes_back(tmp_path: Path) -> None:
    each = some(3)
    domain, leaf, pod = (np.array(numbers) for numbers in ([0, 0, NOBODY], [0, 0, 1], [0, 0, NOBODY]))
    fabric = Fabric(("n0", "n1", "n2"), domain, leaf, pod, ("x.1",), ("a", "b"), ("p",), ("a sentence",))
    compiled.save(tmp_path / "c", each, fabric)
    again = compiled.load(tmp_path / "c").fabric
    for column in ("domain", "leaf", "pod"):
        assert getattr(again, column).tolist() == getattr(fabric, column).tolist()
    for column in ("names", "domains", "leaves", "pods", "conflicts"):
        assert getattr(again, column) == getattr(fabric, column)


def test_nodes_of_one_kind_are_stored_once(tmp_path: Path) -> None:
    for count in (1, 100):
        each = some(count)
        compiled.save(tmp_path / str(count), each, Fabric.of(each))
    one, hundred = ((tmp_path / str(count)).stat().st_size for count in (1, 100))
    assert hundred < one + 99 * 100


def test_machines_and_fabric_are_in_one_order(tmp_path: Path) -> None:
    with pytest.raises(TopologyFileError, match="same order"):
        compiled.save(tmp_path / "c", some(), Fabric.of(some()[::-1]))
    assert list(tmp_path.iterdir()) == []


# Broken and old files.


def saved(folder: Path) -> Path:
    path = folder / "cluster"
    compiled.save(path, some(), Fabric.of(some()), "mark")
    return path


def refused(path: Path, why: str, mark: str = "") -> None:
    with pytest.raises(TopologyFileError) as caught:
        compiled.load(path, mark)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert why in sentence
    assert "run berth topo compile" in sentence
    assert "\n" not in sentence


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "No such file")


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, "checksum")


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = saved(tmp_path_factory.mktemp("changed"))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(TopologyFileError, match="run berth topo compile again"):
        compiled.load(path)


def test_other_files_and_other_versions_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"berth-cluster/2", b"berth-cluster/3", 1))
    refused(path, "its format is berth-cluster/3, and this Berth reads berth-cluster/2")
    path.write_bytes(b"\x80\x04}.")
    refused(path, "no compiled cluster")
    path.write_bytes(b"")
    refused(path, "no compiled cluster")


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """As a program would that knows the checksum."""
    data = json.loads(path.read_bytes().partition(b"\n")[2])
    edit(data)
    body = json.dumps(data).encode()
    path.write_bytes(f"{compiled.FORMAT} {hashlib.blake2b(body, digest_size=16).hexdigest()}\n".encode() + body)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda data: data.pop("leaves"), "keys"),
        (lambda data: data.update(more=1), "keys"),
        (lambda data: data["names"].append("n9"), "one value a node"),
        (lambda data: data.update(names=["n0", "n0", "n1"]), "one value a node"),
        (lambda data: data.update(leaf=[0, 0, 0]), "leaf has no entry in leaves"),
        (lambda data: data.update(block=[0, -2, 0]), "a block or a block size"),
        (lambda data: data.update(block_sizes=[0]), "a block or a block size"),
        (lambda data: data.update(kind=[0, -1, 0]), "kind has no entry in kinds"),
        (lambda data: data["uuids"][1].pop(), "as many UUIDs as GPUs"),
        (lambda data: data.update(pod=["a", "b", "c"]), "not a compiled cluster"),
        (lambda data: data["kinds"][0].pop("model"), '"model" is missing'),
        (lambda data: data.update(kinds=[7]), "not a compiled cluster"),
        (lambda data: data.update(names=7), "not a compiled cluster"),
    ],
)
def test_contents_that_contradict_each_other_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    path = saved(tmp_path)
    change(path, edit)
    refused(path, why)


def test_a_file_made_of_other_sources_is_refused(tmp_path: Path) -> None:
    folder, conf, path = tmp_path / "topology", tmp_path / "topology.conf", tmp_path / "cluster"
    folder.mkdir()
    for machine in some():
        files.dump(machine, folder / f"{machine.node}.json")
    conf.write_text("SwitchName=a Nodes=n[0-2]\n")
    sources = (folder, conf)

    def compile_again() -> None:
        compiled.save(path, some(), Fabric.of(some()), compiled.stamp(sources))
        assert compiled.load(path, compiled.stamp(sources)).names == ("n0", "n1", "n2")

    compile_again()
    os.utime(folder / "n1.json", ns=(1, 1))
    refused(path, "has changed", compiled.stamp(sources))
    compile_again()
    (folder / "n2.json").unlink()
    refused(path, "has changed", compiled.stamp(sources))
    compile_again()
    conf.write_text("SwitchName=ab Nodes=n[0-2]\n")
    refused(path, "has changed", compiled.stamp(sources))
    conf.unlink()
    refused(path, "has changed", compiled.stamp(sources))
    # A reader that does not ask takes what there is.
    assert len(compiled.load(path).names) == 3


def test_a_compiled_file_beside_its_sources_does_not_age_itself(tmp_path: Path) -> None:
    files.dump(some()[0], tmp_path / "n0.json")
    mark = compiled.stamp([tmp_path])
    compiled.save(tmp_path / "cluster", some(1), Fabric.of(some(1)), mark)
    assert compiled.stamp([tmp_path]) == mark


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(TopologyFileError, match=r"cannot write .*cluster: No space left"):
        compiled.save(path, some(2), Fabric.of(some(2)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_loading_needs_no_graph_library(tmp_path: Path) -> None:
    """berthd reads it at its start; islands are looked for when they are asked for."""
    code = "import sys; from topology import compiled; compiled.load(sys.argv[1]); print('networkx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved(tmp_path))],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_slurms_blocks_come_back(tmp_path: Path) -> None:
    nodes = [dataclasses.replace(make_machine(1, {}), node=name) for name in ("n1", "n2", "n3")]
    (tmp_path / "topology.conf").write_text("BlockName=b Nodes=n[1-2]\nBlockSizes=2\n")
    compiled.save(tmp_path / "cluster", nodes, Fabric.of(nodes, slurm_fabric.read(tmp_path / "topology.conf")))

    found = compiled.load(tmp_path / "cluster").fabric.blocks

    assert found is not None
    assert (found.sizes, found.block.tolist()) == ((2,), [0, 0, -1])
