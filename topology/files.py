# SPDX-License-Identifier: Apache-2.0
"""Topology files: one JSON file a node (docs/develop/formats.md, section 3).

Standard library only, because `berth topo discover` runs on compute nodes.
"""

import dataclasses
import difflib
import json
import marshal
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from topology import atomic
from topology.errors import MachineError, TopologyError, TopologyFileError
from topology.model import Discovered, Gpu, Link, Machine, Nic, PathWord, Via

FORMAT = "berth-topology/1"

T = TypeVar("T")

#: Type of each value, and whether the key may be missing.
_MACHINE = {
    "format": (str, True),
    "node": (str, True),
    "model": (str, True),
    "discovered": (dict, False),
    "gpus": (list, True),
    "links": (list, True),
    "paths": (list, True),
    "problems": (list, False),
    "nics": (list, False),
    "nic_paths": (list, False),
    "domain": (str, False),
    "switches": (int, False),
}
_DISCOVERED = {"at": (str, True), "by": (str, True), "driver": (str, False)}
_GPU = {
    "position": (int, True),
    "minor": (int, True),
    "uuid": (str, True),
    "name": (str, False),
    "bus_id": (str, False),
    "numa": (int, False),
    "cpus": (str, False),
    "memory_mib": (int, False),
    "mig": (bool, False),
    "c2c_gbps": (float, False),
}
_NIC = {
    "name": (str, True),
    "bus_id": (str, False),
    "numa": (int, False),
    "kind": (str, False),
    "gbps": (float, False),
}
_LINK = {"a": (int, True), "b": (int, True), "count": (int, True), "gbps": (float, True), "via": (str, False)}
_VIAS = ("direct", "switch")


def load(path: str | os.PathLike[str]) -> Machine:
    """Read one topology file; a TopologyFileError names it and what is wrong in it."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise TopologyFileError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    try:
        return decode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise TopologyFileError(f"{os.fspath(path)}: not a topology file: {error}") from error
    except TopologyError as error:
        raise TopologyFileError(f"{os.fspath(path)}: {error}") from error


def load_directory(
    path: str | os.PathLike[str], on_problem: Callable[[TopologyFileError], None] | None = None
) -> dict[str, Machine]:
    """Read all `*.json` of a directory, by node name.

    A broken file costs its own node only: its error goes to `on_problem`, or nowhere. Only a directory that
    cannot be read raises a TopologyFileError.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.name.endswith(".json"))
    except OSError as error:
        raise TopologyFileError(f"cannot read the topology directory {os.fspath(path)}: {error.strerror}") from error
    machines: dict[str, Machine] = {}
    for name in names:
        file = os.path.join(path, name)  # noqa: PTH118  Path objects double the time of 12,500 files
        try:
            machine = load(file)
        except TopologyFileError as error:
            problem = error
        else:
            if machine.node not in machines:
                machines[machine.node] = machine
                continue
            problem = TopologyFileError(f"{file}: node {machine.node} stands in an earlier file already")
        if on_problem:
            on_problem(problem)
    return machines


def stamp(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Returns a mark of files, and of `*.json` in folders, that changes when one of them does; missing ones count."""
    marks: list[str] = []
    for source in paths:
        try:
            with os.scandir(source) as entries:
                found = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".json")]
        except NotADirectoryError:
            found = [("", Path(source).stat())]
        except OSError:
            found = []
        marks += [f"{os.fspath(source)}:", *sorted(f"{name} {one.st_size} {one.st_mtime_ns}" for name, one in found)]
    return "\n".join(marks)


def dump(machine: Machine, path: str | os.PathLike[str]) -> None:
    """Write one topology file so that a reader sees the old one or the new one, never a part."""
    atomic.replace(path, encode(machine).encode("ascii"))


def encode(machine: Machine) -> str:
    """Returns the file's text: one line for each GPU, link and row of paths, so that diffs are readable."""
    head: dict[str, Any] = {"format": FORMAT, "node": machine.node, "model": machine.model}
    if machine.discovered:
        head["discovered"] = dataclasses.asdict(machine.discovered)
    if machine.domain:
        head["domain"] = machine.domain
    if machine.switches:
        head["switches"] = machine.switches
    blocks = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    blocks += [
        _block("gpus", map(dataclasses.asdict, machine.gpus)),
        _block("links", map(dataclasses.asdict, machine.links)),
        _block("paths", map(list, machine.paths)),
        *([_block("nics", map(dataclasses.asdict, machine.nics))] if machine.nics else []),
        *([_block("nic_paths", map(list, machine.nic_paths))] if machine.nic_paths else []),
        _block("problems", machine.problems),
    ]
    return "{" + ",\n ".join(blocks) + "}\n"


def _block(key: str, values: Iterable[object]) -> str:
    lines = [json.dumps(value) for value in values]
    return f'"{key}": [' + ("\n  " + ",\n  ".join(lines) if lines else "") + "]"


def decode(data: object) -> Machine:
    """Make a machine of parsed JSON.

    A TopologyFileError names the place and the key that is wrong, a MachineError the parts that contradict each other.
    """
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise TopologyFileError(f'the format is "{data["format"]}"; this Berth reads {FORMAT}')
    whole = _fields(data, _MACHINE, "the file")
    discovered = whole.get("discovered")
    if not _NODE_NAME.issuperset(whole["node"]) or not whole["node"]:
        raise TopologyFileError(f'"{whole["node"]}" is not a node name')
    if not whole["gpus"]:
        raise TopologyFileError('"gpus" is empty; an object for each GPU is expected')
    return Machine(
        node=whole["node"],
        model=whole["model"],
        gpus=tuple(Gpu(**_fields(gpu, _GPU, f"gpus[{i}]")) for i, gpu in enumerate(whole["gpus"])),
        links=_once(_links, whole["links"]),
        paths=_once(_paths, whole["paths"]),
        problems=_texts(whole.get("problems", []), "problems"),
        discovered=Discovered(**_fields(discovered, _DISCOVERED, "discovered")) if discovered else None,
        nics=_once(_nics, whole["nics"]) if whole.get("nics") else (),
        nic_paths=_once(_nic_paths, whole["nic_paths"]) if whole.get("nic_paths") else (),
        domain=whole.get("domain", ""),
        switches=whole.get("switches", 0),
    )


# A node's name becomes a file's name and a word in slurm.conf.
_NODE_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def _link(data: object, where: str) -> Link:
    link = _fields(data, _LINK, where)
    via = link.get("via", "direct")
    if via not in _VIAS:
        raise TopologyFileError(f'{where}: via is "{via}"; it is one of {", ".join(_VIAS)}')
    if link["count"] < 1:
        raise MachineError(f"{where}: count is {link['count']}; leave a dead link out")
    return Link(link["a"], link["b"], link["count"], float(link["gbps"]), cast("Via", via))


def _links(data: list[object]) -> tuple[Link, ...]:
    return tuple(_link(link, f"links[{i}]") for i, link in enumerate(data))


def _paths(data: list[object]) -> tuple[tuple[PathWord, ...], ...]:
    return tuple(cast("tuple[PathWord, ...]", _texts(row, f"paths[{i}]")) for i, row in enumerate(data))


def _nics(data: list[object]) -> tuple[Nic, ...]:
    return tuple(Nic(**_fields(nic, _NIC, f"nics[{i}]")) for i, nic in enumerate(data))


def _nic_paths(data: list[object]) -> tuple[tuple[PathWord, ...], ...]:
    return tuple(cast("tuple[PathWord, ...]", _texts(row, f"nic_paths[{i}]")) for i, row in enumerate(data))


def _once(make: Callable[[list[object]], T], data: list[object]) -> T:
    """Makes equal parts of many files once: nodes come in a few kinds, so each part is checked and kept once."""
    # Version 2 knows no back references, so equal data of equal types are equal bytes.
    key = make.__name__.encode() + marshal.dumps(data, 2)
    made: T | None = _made.get(key)
    if made is None:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        made = _made[key] = make(data)
    return made


_MOST_MADE = 4096
_made: dict[bytes, Any] = {}


def _texts(data: object, where: str) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise TopologyFileError(f"{where}: a list of texts is expected")
    return tuple(data)


def _fields(data: object, spec: Mapping[str, tuple[type, bool]], where: str) -> dict[str, Any]:
    """Check an object's keys and the types of its values."""
    if not isinstance(data, dict):
        raise TopologyFileError(f"{where}: an object is expected")
    for key, value in data.items():
        known = spec.get(key)
        if known is None:
            raise TopologyFileError(f"{where}: {_unknown(key, spec)}")
        kind = known[0]
        # JSON's true is an int to Python, and a whole number is a fine float.
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise TopologyFileError(f'{where}: "{key}" should be {_KINDS[kind]}, not {json.dumps(value)[:40]}')
    for key, (_, required) in spec.items():
        if required and key not in data:
            raise TopologyFileError(f'{where}: "{key}" is missing')
    return data


_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"} | {
    dict: "an object",
    list: "a list",
}


def _unknown(key: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0)
    return f'there is no key "{key}"; did you mean "{nearest[0]}"?'
