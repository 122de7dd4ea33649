#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes every list of berth.conf's keys from packaging/keys.toml: `make keys`.

The lists are the tables that policy, the node side and the plugins read, docs/admin/keys.md and the manual page's
TABLES. They are kept in git, and tests/unit/repository/test_keys.py fails where one of them is stale.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "packaging" / "keys.toml"
MAN = Path("docs/man/berth.conf.5")
SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
WRITTEN = "Written by `make keys` from packaging/keys.toml: change that file"
NODE_TABLES = ("node", "guard")
"""The tables, with those within them, that only programs on nodes check."""
PROLOG = {"node": "NodeConfig"}
GUARD = {
    "notice": "NoticeTable",
    "guard.bound": "BoundSettings",
    "guard.machine": "MachineSettings",
    "guard.action": "ActionSettings",
    "guard": "GuardSettings",
}
"""The node side's class for each table, by file; a table stands behind those within it."""
TYPES = {"int": "int", "float": "float", "bool": "bool", "paths": "tuple[str, ...]"}
SHOWN = {"list": "names", "paths": "list of paths", "float": "number", "int": "whole number", "bool": "true or false"}


class Table(NamedTuple):
    """A table of berth.conf."""

    name: str
    about: str
    readers: list[str]
    keys: dict[str, dict[str, Any]]


def read() -> list[Table]:
    """Returns all tables."""
    content = tomllib.loads(SOURCE.read_text())
    return [table for name, section in content.items() for table in _tables(name, section)]


def _tables(name: str, section: dict[str, Any]) -> Iterator[Table]:
    keys = {key: value for key, value in section.items() if isinstance(value, dict) and "type" in value}
    yield Table(name, section["_about"], section["_readers"], keys)
    for key, value in section.items():
        if isinstance(value, dict) and key not in keys:
            yield from _tables(f"{name}.{key}", value)


def outputs() -> dict[Path, str]:
    """Returns the text of each file, by its path from the repository's root."""
    tables = read()
    return {
        Path("policy/site/keys.py"): "".join(_policy(tables)),
        Path("prolog_epilog/settings/keys.py"): "".join(_node(tables, PROLOG)),
        Path("prolog_epilog/settings/guard_keys.py"): "".join(_node(tables, GUARD)),
        Path("slurm_plugins/config/keys.h"): "".join(_plugin(tables)),
        Path("docs/admin/keys.md"): "".join(_page(tables)),
        MAN: _manual(tables, (ROOT / MAN).read_text()),
    }


def _is_of_node(table: str) -> bool:
    return table.partition(".")[0] in NODE_TABLES


# Python


def _policy(tables: list[Table]) -> Iterator[str]:
    yield f'{SPDX}"""The keys of berth.conf that berthd and the commands check.\n\n{WRITTEN}.\n"""\n\n'
    yield "from typing import Any, NamedTuple\n\n\n"
    yield 'class Key(NamedTuple):\n    """A key; bounds are of a number, or of a time in seconds."""\n\n'
    yield '    kind: str\n    default: Any = ""\n    least: int | None = None\n    most: int | None = None\n'
    yield '    unit: str = ""\n    words: tuple[str, ...] = ()\n\n\n'
    yield "KEYS: dict[str, dict[str, Key]] = {\n"
    for table in tables:
        if _is_of_node(table.name):
            continue
        yield f'    "{table.name}": {{\n'
        for name, key in table.keys.items():
            yield f'        "{name}": Key({", ".join(_row(key))}),\n'
        yield "    },\n"
    yield "}\n"


def _row(key: dict[str, Any]) -> Iterator[str]:
    """Yields the arguments of a key; those at the end that are the defaults are left out."""
    yield _text(key["type"])
    bounds = [key.get("min"), key.get("max"), key.get("unit", "")]
    if key["type"] == "bool":
        yield f"default={key['default']}"
    elif "default" in key or key["type"] == "time":
        yield _text(key.get("default"))
    while bounds and bounds[-1] in (None, ""):
        bounds.pop()
    yield from map(_text, bounds)
    if "words" in key:
        yield f"words={_text(tuple(key['words']))}"


def _node(tables: list[Table], classes: dict[str, str]) -> Iterator[str]:
    readers = "the guard reads" if classes is GUARD else "each Prolog reads"
    yield f'{SPDX}"""The keys of berth.conf that {readers}.\n\n{WRITTEN}.\n'
    yield "A number has its least and its greatest value beside it, a text its choices, or `path`.\n"
    yield '"""\n\n' if classes is GUARD else 'This is no dataclass, because each Prolog waits for this file.\n"""\n\n'
    yield "from typing import Annotated, NamedTuple\n"
    by_name = {table.name: table for table in tables}
    for name, cls in classes.items():
        yield f'\n\nclass {cls}(NamedTuple):\n    """The table [{name}]: {_plain(by_name[name].about)}"""\n\n'
        for key, value in by_name[name].keys.items():
            if "node" in value.get("readers", by_name[name].readers):
                yield f"    {key}: {_annotation(value)} = {_default(value)}\n"
        for inner, inner_class in classes.items():
            if inner.startswith(f"{name}."):
                yield f"    {inner.partition('.')[2]}: {inner_class} = {inner_class}()\n"


def _annotation(key: dict[str, Any]) -> str:
    kind = TYPES.get(key["type"], "str")
    if "words" in key:
        return f"Annotated[{kind}, {_text(tuple(key['words']))}]"
    if key["type"] == "path":
        return f'Annotated[{kind}, "path"]'
    if "min" in key or "max" in key:
        return f"Annotated[{kind}, ({key.get('min')}, {key.get('max')})]"
    return kind


def _default(key: dict[str, Any]) -> str:
    return "()" if key["type"] == "paths" else _text(key.get("default", ""))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return repr(value)


# C


def _plugin(tables: list[Table]) -> Iterator[str]:
    yield "/* SPDX-License-Identifier: Apache-2.0 */\n/* The keys of berth.conf that C reads, for config.c alone.\n"
    yield f" * {WRITTEN}. */\n/* clang-format off */\n"
    for table in tables:
        if "plugin" not in table.readers:
            continue
        name = table.name
        yield f"\nstatic const struct key {name}_keys[] = {{\n"
        for key, value in table.keys.items():
            member = f"MEMBER({name}, {value.get('field', key)})"
            least, most = value.get("min", 0), value.get("max", 0)
            words = _c("|".join(value["words"])) if "words" in value else "NULL"
            right = _c(_right(value))
            yield f"\t{{{_c(key)}, {_kind(value)}, {member}, {least}, {most}, {words}, {right}}},\n"
        yield "};\n\n"
        yield f"static const struct {name}_config {name}_defaults = {{\n"
        for key, value in table.keys.items():
            if initial := _initial(key, value):
                yield f"\t.{value.get('field', key)} = {initial},\n"
        yield "};\n"
        count = f"sizeof({name}_keys) / sizeof({name}_keys[0])"
        members = f'"{name}", {name}_keys, {count}, &{name}_defaults, sizeof({name}_defaults)'
        yield f"\nstatic const struct table {name}_table = {{{members}}};\n"


def _kind(key: dict[str, Any]) -> str:
    kinds = {"path": "KEY_PATH", "int": "KEY_NUMBER", "word": "KEY_WORD", "time": "KEY_TIME"}
    return kinds.get(key["type"], "KEY_TEXT")


def _right(key: dict[str, Any]) -> str:
    """Returns what a right value is, for the sentence about a wrong one."""
    if key["type"] == "path":
        return f"an absolute path of at most {key['bytes']} bytes"
    if key["type"] == "int":
        return f"a whole number from {key['min']} to {key['max']}"
    if key["type"] == "word":
        words = [f'"{word}"' for word in key["words"]]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if key["type"] == "list":
        return f"{key['names']}, comma-separated, at most {key['bytes']} bytes"
    return str(key["names"])


def _initial(name: str, key: dict[str, Any]) -> str:
    """Returns C's initial value; an empty text where zero bytes mean the same."""
    value = key.get("default")
    if key["type"] == "word":
        return f"{name}_{value}".upper() if key["words"].index(value) else ""
    if key["type"] == "time":
        return str(_seconds(str(value)))
    return _c(value) if isinstance(value, str) and value else str(value or "")


def _seconds(time: str) -> int:
    parts = [int(part) for part in time.split(":")]
    parts = [0, *parts] if len(parts) == 2 else parts
    return parts[0] * 3_600 + parts[1] * 60 + parts[2]


def _c(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


# Pages


def _shown(key: dict[str, Any]) -> str:
    """Returns a key's default as pages show it."""
    value = key.get("default")
    if value is None:
        return str(key["unset"])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(key: dict[str, Any]) -> str:
    """Returns a key's type with its bounds and unit."""
    if "words" in key:
        return ", ".join(f"`{word}`" for word in key["words"])
    said = SHOWN.get(key["type"], key["type"])
    least, most = key.get("min"), key.get("max")
    if least is not None and key["type"] != "time":
        said += f", {least} to {most}" if most is not None else f", at least {least}"
    return f"{said}, {key['unit']}" if "unit" in key else said


def _page(tables: list[Table]) -> Iterator[str]:
    yield f"<!-- {WRITTEN}. -->\n\n# Keys of berth.conf\n\n"
    yield "All keys, by table. "
    yield "[install.md](install.md#who-reads-berthconf-and-when) says where the file lies and who reads it when.\n"
    yield "A *path* begins with `/`. "
    yield "A *time* is written as in `--locality` (M, M:S, H:M:S, D-H), a *size* as in `12G`.\n"
    for table in tables:
        yield f"\n## `[{table.name}]`\n\n{table.about}\n\n"
        yield "| key | type | default | read by | meaning |\n|---|---|---|---|---|\n"
        for name, key in table.keys.items():
            readers = ", ".join(key.get("readers", table.readers))
            default = f"`{_shown(key)}`" if "default" in key else _shown(key)
            text = key["text"].replace("|", "\\|")
            yield f"| `{name}` | {_type(key)} | {default} | {readers} | {text} |\n"


def _manual(tables: list[Table], page: str) -> str:
    head, _, rest = page.partition(".SH TABLES\n")
    tail = rest.partition(".SH EXAMPLE\n")[2]
    return f'{head}.SH TABLES\n.\\" {WRITTEN}.\n{"".join(_terms(tables))}.SH EXAMPLE\n{tail}'


def _terms(tables: list[Table]) -> Iterator[str]:
    for table in tables:
        yield f".SS [{table.name}]\n{_roff(table.about)}\n"
        for name, key in table.keys.items():
            unit = f" {key['unit']}" if "unit" in key and "default" in key else ""
            yield f'.TP\n.BR {name} " ({_roff(_shown(key))}{unit})"\n{_roff(key["text"])}\n'


def _plain(text: str) -> str:
    return re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)", "", text)


def _roff(text: str) -> str:
    plain = re.sub(r"\[([^]|]*)\]\([^)]*\)", r"\1", _plain(text)).replace("`", "")
    return plain.replace("\\", "\\e").replace("-", "\\-")


def main() -> int:
    """Writes all files that differ."""
    for path, text in outputs().items():
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
            (ROOT / path).write_text(text)
            sys.stdout.write(f"keys: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
