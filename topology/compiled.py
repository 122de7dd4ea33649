"""The compiled cluster (docs/formats.md, section 8): all topology files and the fabric in one file that loads at once.

Nodes come in a few kinds: what nodes of one kind have in common is stored once, as a topology file without the
node's own name and UUIDs, and a node is made a Machine again when it is asked for.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from topology import atomic, files
from topology.errors import TopologyError, TopologyFileError
from topology.model import Gpu, Machine
from topology.network.blocks import IN_NO_BLOCK, Blocks
from topology.network.fabric import NOBODY, Fabric
from topology.providers import slurm_fabric

FORMAT = "berth-cluster/2"
FILE_NAME = "cluster.compiled"
"""Its name in the folder of its topology files."""

#: Columns with one value a node.
_COLUMNS = ("names", "kind", "uuids", "at", "machine_domain", "domain", "leaf", "pod", "block")
_KEYS = {*_COLUMNS, "stamp", "kinds", "domains", "leaves", "pods", "conflicts", "block_sizes"}


class CompiledCluster:
    """A cluster as `load` reads it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._kinds = [files.decode(kind) for kind in data["kinds"]]
        domain, leaf, pod = (np.array(data[key], np.int64) for key in ("domain", "leaf", "pod"))
        lists = (tuple(data[key]) for key in ("domains", "leaves", "pods", "conflicts"))
        sizes = tuple(data["block_sizes"])
        blocks = Blocks(sizes, np.array(data["block"], np.int64)) if sizes else None
        self.fabric = Fabric(tuple(data["names"]), domain, leaf, pod, *lists, blocks=blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes, in the order of all arrays."""
        return self.fabric.names

    def machines(self) -> Iterator[Machine]:
        """Yields all machines, each made when it is asked for."""
        each = (self._data[column] for column in ("names", "kind", "uuids", "machine_domain", "at"))
        for name, kind, uuids, domain, at in zip(*each, strict=True):
            prototype = self._kinds[kind]
            yield dataclasses.replace(
                prototype,
                node=name,
                gpus=tuple(map(_with_uuid, prototype.gpus, uuids)),
                domain=domain,
                discovered=dataclasses.replace(prototype.discovered, at=at) if prototype.discovered else None,
            )


def save(path: str | os.PathLike[str], machines: Iterable[Machine], fabric: Fabric, mark: str = "") -> None:
    """Write the file so that a reader sees the old one or the new one, never a part.

    `mark` is what `stamp` said of the sources before they were read.
    """
    machines = tuple(machines)
    if tuple(machine.node for machine in machines) != fabric.names:
        raise TopologyFileError(f"cannot write {path}: the machines are not the fabric's nodes in the same order")
    kinds: dict[Machine, int] = {}
    data: dict[str, Any] = {
        "stamp": mark,
        "names": fabric.names,
        "kind": [kinds.setdefault(_kind_of(machine), len(kinds)) for machine in machines],
        "uuids": [[gpu.uuid for gpu in machine.gpus] for machine in machines],
        "at": [machine.discovered.at if machine.discovered else "" for machine in machines],
        "machine_domain": [machine.domain for machine in machines],
        "domain": fabric.domain.tolist(),
        "leaf": fabric.leaf.tolist(),
        "pod": fabric.pod.tolist(),
        "domains": fabric.domains,
        "leaves": fabric.leaves,
        "pods": fabric.pods,
        "conflicts": fabric.conflicts,
        "block": fabric.blocks.block.tolist() if fabric.blocks else [IN_NO_BLOCK] * len(machines),
        "block_sizes": fabric.blocks.sizes if fabric.blocks else (),
    }
    data["kinds"] = [json.loads(files.encode(kind)) for kind in kinds]
    body = json.dumps(data, separators=(",", ":")).encode()
    atomic.replace(path, f"{FORMAT} {_digest(body)}\n".encode() + body)


def load(path: str | os.PathLike[str], mark: str = "") -> CompiledCluster:
    """Read the file; a TopologyFileError names it and what to do where it is broken, or older than its sources.

    With `mark`, what `stamp` says of the sources now, a file made of other sources is refused.
    """
    try:
        head, _, body = Path(path).read_bytes().partition(b"\n")
    except OSError as error:
        raise TopologyFileError(f"cannot read {path}: {error.strerror}; run berth topo compile") from error
    version, _, digest = head.decode("ascii", "replace").partition(" ")
    if version != FORMAT:
        known = version.startswith("berth-cluster/")
        _refuse(path, f"its format is {version}, and this Berth reads {FORMAT}" if known else "no compiled cluster")
    if digest != _digest(body):
        _refuse(path, "its checksum is wrong, so it was cut or changed")
    try:
        data = json.loads(body)
        _check(data)
        cluster = CompiledCluster(data)
    except (TopologyError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # The checksum is right, so a program wrote it so.
        raise TopologyFileError(f"{path}: not a compiled cluster: {error}; run berth topo compile again") from error
    if mark and data["stamp"] != mark:
        _refuse(path, "a topology file or the fabric has changed since it was made")
    return cluster


def sources(directory: Path, fabric: Path | None) -> list[Path]:
    """Returns the sources of a compiled cluster: folder of topology files, Slurm's file and all that it includes."""
    return [directory, *(slurm_fabric.sources(fabric) if fabric else ())]


def stamp(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Returns a mark of files, and of `*.json` in folders, that changes when one of them does; missing ones count."""
    marks: list[str] = []
    for source in paths:
        try:
            with os.scandir(source) as entries:
                files_ = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".json")]
        except NotADirectoryError:
            files_ = [("", Path(source).stat())]
        except OSError:
            files_ = []
        lines = sorted(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files_)
        marks += [f"{os.fspath(source)}:", *lines]
    return _digest("\n".join(marks).encode())


def _kind_of(machine: Machine) -> Machine:
    """Returns the machine with place-holders for what is each node's own."""
    return dataclasses.replace(
        machine,
        node="node",
        gpus=tuple(_with_uuid(gpu, str(gpu.position)) for gpu in machine.gpus),
        domain="",
        discovered=dataclasses.replace(machine.discovered, at="") if machine.discovered else None,
    )


def _with_uuid(gpu: Gpu, uuid: str) -> Gpu:
    return dataclasses.replace(gpu, uuid=uuid)


def _check(data: Any) -> None:
    if not isinstance(data, dict) or data.keys() != _KEYS:
        raise ValueError("its keys are not those of this format")
    nodes = len(data["names"])
    if len(set(data["names"])) != nodes or any(len(data[column]) != nodes for column in _COLUMNS):
        raise ValueError("its columns are not one value a node")
    for column, names in (("domain", "domains"), ("leaf", "leaves"), ("pod", "pods"), ("kind", "kinds")):
        lowest = 0 if column == "kind" else NOBODY
        if nodes and not lowest <= min(data[column]) <= max(data[column]) < len(data[names]):
            raise ValueError(f"a number in {column} has no entry in {names}")
    if nodes and (min(data["block"]) < IN_NO_BLOCK or any(size < 1 for size in data["block_sizes"])):
        raise ValueError("a block or a block size is no number that can be one")
    sizes = [len(kind["gpus"]) for kind in data["kinds"]]
    if any(len(uuids) != sizes[kind] for kind, uuids in zip(data["kind"], data["uuids"], strict=True)):
        raise ValueError("a node has not as many UUIDs as GPUs")


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _refuse(path: str | os.PathLike[str], why: str) -> NoReturn:
    raise TopologyFileError(f"{os.fspath(path)}: {why}; run berth topo compile again")
