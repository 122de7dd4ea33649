# SPDX-License-Identifier: Apache-2.0
"""Changes single keys of berth.conf as text, so that comments and order stay."""

import re
import tomllib
from typing import Any

from policy.formats.errors import ConfigError

_TABLE = re.compile(r"^[ \t]*\[[ \t]*([\w.-]+)[ \t]*\][ \t]*(?:#.*)?\r?(?:\n|\Z)", re.MULTILINE)


def value_of(text: str, table: str, key: str) -> object:
    """Returns the value of a key of a table; None if it is not set."""
    return _read(text).get(table, {}).get(key)


def set_key(text: str, table: str, key: str, value: str) -> str:
    """Returns the text with a key of a table set; adds a missing table.

    `value` is in TOML's form. Raises ConfigError if the change would not have exactly this effect, as with dotted keys.
    """
    wanted = _read(text)
    wanted.setdefault(table, {})[key] = tomllib.loads(f"it = {value}")["it"]
    changed = _changed(text, table, key, f"{key} = {value}\n")
    try:
        right = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        raise ConfigError(
            f"berth.conf: [{table}] {key} stands there in a form that is not changed; write {key} = {value} by hand"
        )
    return changed


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"berth.conf: {problem}") from None


def _changed(text: str, table: str, key: str, mine: str) -> str:
    heads = list(_TABLE.finditer(text))
    place = next((place for place, head in enumerate(heads) if head[1] == table), None)
    if place is None:
        return f"{_ended(text)}[{table}]\n{mine}"
    begin, end = heads[place].end(), heads[place + 1].start() if heads[place + 1 :] else len(text)
    line = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=.*(?:\n|\Z)", re.MULTILINE).search(text, begin, end)
    before, after = (line.start(), line.end()) if line else (begin, begin)
    return f"{_ended(text[:before])}{mine}{text[after:]}"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
