# SPDX-License-Identifier: Apache-2.0
"""Reads the table `[node]` of berth.conf, and checks every key; other programs read the other tables."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.settings.keys import NodeConfig

__all__ = ["CONFIGLESS", "NodeConfig", "filled", "find", "load", "plain", "skipped"]

CONFIGLESS = "/etc/slurm/berth.conf"
"""The path of berth.conf on nodes to which the controller sends slurm.conf."""

_TABLE = re.compile(rb"^[^#\w\n]*node", re.MULTILINE)
"""The begin of a line that could open the table."""

_KINDS = {str: "a text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
_IN_LISTS = ("inject_from",)
"""Keys whose values become elements of lists of paths."""

_Table = TypeVar("_Table", bound=NamedTuple)


def find(environment: Mapping[str, str]) -> str:
    """Returns the path of berth.conf: beside the slurm.conf that slurmd names.

    BERTH_CONF is not read: root's programs call this, and only what slurmd says counts there.
    """
    beside = os.path.join(os.path.dirname(environment.get("SLURM_CONF") or "/etc/slurm/slurm.conf"), "berth.conf")  # noqa: PTH118, PTH120 - pathlib costs the Prolog 10 ms
    return beside if os.path.exists(beside) else CONFIGLESS  # noqa: PTH110 - the same


def load(path: str) -> NodeConfig:
    """Reads berth.conf; without one, returns the defaults."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the Prolog 10 ms
            text = file.read()
    except FileNotFoundError:
        return NodeConfig()
    except OSError as problem:
        raise NodeConfigError(f"{path}: {problem.strerror}; let root read it") from None
    if not _TABLE.search(text):
        # Most sites set nothing here; reading TOML takes longer than all the rest of a Prolog.
        return NodeConfig()
    return _config(path, text)


def skipped(path: str) -> frozenset[str]:
    """Returns the partitions of [hook] skip_partitions; none if berth.conf does not say."""
    listed = _hook(path).get("skip_partitions", "")
    return frozenset(name.strip() for name in str(listed).split(",")) - {""}


def plain(path: str) -> bool:
    """Tells whether [hook] layout is "plain": no job shares a GPU then."""
    return _hook(path).get("layout") == "plain"


def _hook(path: str) -> Mapping[str, Any]:
    """Returns the table [hook]; an empty one if berth.conf has none that can be read."""
    import tomllib  # noqa: PLC0415 - see load()

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the Prolog 10 ms
            found = tomllib.load(file).get("hook")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _config(path: str, text: bytes) -> NodeConfig:
    import tomllib  # noqa: PLC0415 - see load()

    try:
        table = tomllib.loads(text.decode()).get("node", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise NodeConfigError(f"{path}: {problem}") from None
    if not isinstance(table, dict):
        raise NodeConfigError(f"{path}: node is a table, [node]")
    try:
        return filled(NodeConfig(), table, "node")
    except NodeConfigError as problem:
        raise NodeConfigError(f"{path}: {problem}") from None


def filled(table: _Table, section: Mapping[str, Any], name: str) -> _Table:
    """Returns a table of berth.conf with its defaults replaced by what the section says."""
    known, changed = table._asdict(), {}
    for key, value in section.items():
        if key not in known:
            raise NodeConfigError(f"[{name}] has no key {key}{_nearest(key, known)}")
        changed[key] = _value(table, key, value, name)
    return table._replace(**changed)


def _value(table: NamedTuple, key: str, value: Any, name: str) -> Any:
    default, where = getattr(table, key), f"[{name}] {key}"
    if hasattr(default, "_fields"):
        if not isinstance(value, Mapping):
            raise NodeConfigError(f"{where} is a table of keys, not {value!r}")
        return filled(default, value, f"{name}.{key}")
    if isinstance(default, tuple):
        return _patterns(where, value)
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise NodeConfigError(f"{where} is {_KINDS[type(default)]}, not {value!r}")
    for right in getattr(type(table).__annotations__[key], "__metadata__", ()):
        if right == "path":
            if value and not value.startswith("/"):
                raise NodeConfigError(f"{where} is a path from / on, not {value!r}")
        elif isinstance(default, str):
            if value not in right:
                raise NodeConfigError(f"{where} is one of {', '.join(right)}, not {value!r}")
        elif not right[0] <= value <= (value if right[1] is None else right[1]):
            bounds = f"at least {right[0]}" if right[1] is None else f"from {right[0]} to {right[1]}"
            raise NodeConfigError(f"{where} is {bounds}, not {value}")
    if key in _IN_LISTS and (not value or not value.isascii() or any(sign <= " " or sign == ":" for sign in value)):
        raise NodeConfigError(f"{where} is a path without blanks and colons, not {value!r}")
    return value


def _patterns(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.startswith("/") for one in value):
        raise NodeConfigError(f'{where} is a list of paths from / on, such as ["/etc/slurm/prolog.d/*"]')
    return tuple(value)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"
