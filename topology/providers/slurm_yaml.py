# SPDX-License-Identifier: Apache-2.0
"""Slurm's topology.yaml: the lists of the one topology that is chosen."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from topology.errors import TopologyFileError
from topology.providers.slurm_layout import (
    Entry,
    Kind,
    SlurmFabric,
    block_sizes_of,
    fail,
    leaves_of,
    names_of,
    perhaps,
    text_of,
    whole,
)

_TYPES = ("tree", "block", "ring", "flat", "torus3d")
#: Of each type: its list, the key that names an item, the key of child switches, further keys.
_LISTS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "tree": ("switches", "switch", ("children",), ()),
    "block": ("blocks", "block", (), ("block_sizes",)),
    "ring": ("rings", "ring", (), ()),
}


def read_yaml(path: Path, name: str | None) -> SlurmFabric:
    """Returns the topology of this name, else the one that Slurm takes where no partition names one."""
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  no stubs; only where a topology.yaml is
    except ImportError:
        fail(str(path), "PyYAML is needed to read it; install it, or slurm-berth[daemon], which brings it")
    try:
        # Composed, not loaded: nodes keep their line numbers, and no tag makes an object.
        root = yaml.compose(text_of(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise TopologyFileError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    units = [_fields(item, path, ("topology", "cluster_default", *_TYPES)) for item in _items(root, path, "the file")]
    named = [(_scalar(_need(unit, "topology", path), path), unit) for unit in units]
    twice = [one for one, count in Counter(one for one, _ in named).items() if count > 1]
    if twice:
        fail(str(path), f'two topologies are called "{twice[0]}"')
    if not named:
        fail(str(path), "there is no topology in it")
    chosen, unit = _choose(named, name, path)
    return _unit(chosen, unit, path)


def _choose(named: list[tuple[str, dict[str, Any]]], name: str | None, path: Path) -> tuple[str, dict[str, Any]]:
    if name is None:
        defaults = [one for one in named if "cluster_default" in one[1] and _yes(one[1]["cluster_default"], path)]
        return (defaults or named)[0]
    for one in named:
        if one[0] == name:
            return one
    names = [one for one, _ in named]
    return fail(str(path), f'there is no topology "{name}" in it, only {", ".join(names)}')


def _unit(name: str, unit: dict[str, Any], path: Path) -> SlurmFabric:
    types = [one for one in _TYPES if one in unit and not (one == "flat" and _is_no(unit[one]))]
    if len(types) != 1:
        has = " and ".join(types) or "none"
        fail(_at(unit["topology"], path), f'topology "{name}" has {has}; one of {", ".join(_TYPES)} is expected')
    kind = types[0]
    if kind == "flat":
        return SlurmFabric(str(path), "flat", (), name)
    if kind == "torus3d":
        fail(_at(unit["torus3d"], path), "Berth reads tree, block, ring and flat, and no torus3d")
    listed, item_key, child_keys, others = _LISTS[kind]
    body = _fields(unit[kind], path, (listed, *others))
    entries = []
    for item in _items(_need(body, listed, path, unit[kind]), path, listed):
        fields = _fields(item, path, (item_key, "nodes", *child_keys))
        where = _at(item, path)
        lists = [names_of(_scalar(fields[key], path), where) if key in fields else () for key in ("nodes", "children")]
        entries.append(Entry(where, _scalar(_need(fields, item_key, path, item), path), *lists))
    sizes = None
    if "block_sizes" in body:
        words = _items(body["block_sizes"], path, "block_sizes")
        sizes = [whole(_scalar(word, path), _at(word, path), "block_sizes") for word in words]
    found = cast("Kind", kind)
    leaves = leaves_of(found, entries, sizes or None, str(path))
    return SlurmFabric(str(path), found, leaves, name, block_sizes_of(found, sizes, leaves))


def _at(node: Any, path: Path) -> str:
    return f"{path}, line {node.start_mark.line + 1}"


def _fields(node: Any, path: Path, allowed: Sequence[str]) -> dict[str, Any]:
    if node.id != "mapping":
        fail(_at(node, path), f"keys of {', '.join(allowed)} are expected")
    fields: dict[str, Any] = {}
    for key, value in node.value:
        if key.value not in allowed:
            fail(_at(key, path), f"there is no key {key.value} here{perhaps(str(key.value), allowed)}")
        if key.value in fields:
            fail(_at(key, path), f"{key.value} stands there twice")
        fields[key.value] = value
    return fields


def _need(fields: dict[str, Any], key: str, path: Path, parent: Any = None) -> Any:
    if key not in fields:
        near = parent if parent is not None else next(iter(fields.values()), None)
        fail(_at(near, path) if near is not None else str(path), f"{key} is missing")
    return fields[key]


def _items(node: Any, path: Path, what: str) -> list[Any]:
    if node is None or node.id != "sequence":
        fail(str(path) if node is None else _at(node, path), f"{what} should be a list")
    return cast("list[Any]", node.value)


def _scalar(node: Any, path: Path) -> str:
    if node.id != "scalar":
        fail(_at(node, path), "a single value is expected, no list and no keys")
    return cast("str", node.value)


def _yes(node: Any, path: Path) -> bool:
    word = _scalar(node, path).lower()
    if word not in {"true", "false", "yes", "no"}:
        fail(_at(node, path), f'true or false is expected, not "{word[:40]}"')
    return word in {"true", "yes"}


def _is_no(node: Any) -> bool:
    return node.id == "scalar" and node.value.lower() in {"false", "no"}
