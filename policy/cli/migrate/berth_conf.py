"""Changes single keys of berth.conf as text, so that comments and order stay."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

from policy.formats.errors import ConfigError

__all__ = ["set_key"]

_TABLE = re.compile(r"[ \t]*\[[ \t]*([\w.-]+)[ \t]*\][ \t]*(?:#.*)?")


def set_key(text: str, table: str, key: str, value: str | None) -> str:
    """Returns the text with a key of a table; None takes the key out, and a table that is missing is added.

    `value` is in TOML's form. Raises ConfigError where the change would not mean just that, as with dotted keys.
    """
    before = _parsed(text)
    wanted = {name: dict(part) if isinstance(part, dict) else part for name, part in before.items()}
    if value is None:
        if key not in wanted.get(table, {}):
            return text
        del wanted[table][key]
    else:
        wanted.setdefault(table, {})[key] = tomllib.loads(f"it = {value}")["it"]
    changed = "".join(_lines(re.findall(r"[^\n]*\n|[^\n]+", text), table, key, value))
    if _parsed(changed) != wanted:
        verb = f"write {key} = {value}" if value is not None else f"take out {key}"
        raise ConfigError(f"berth.conf: [{table}] {key} stands there in a form that is not changed; {verb} by hand")
    return changed


def _lines(lines: Sequence[str], table: str, key: str, value: str | None) -> list[str]:
    mine = f"{key} = {value}\n"
    inside = done = False
    heading = -1
    result: list[str] = []
    for line in lines:
        head = _TABLE.fullmatch(line.rstrip("\r\n"))
        if head:
            inside = head[1] == table
        if inside and re.match(rf"[ \t]*{re.escape(key)}[ \t]*=", line):
            if value is not None:
                result.append(mine)
            done = True
            continue
        result.append(line)
        if head and inside:
            heading = len(result)
    if done or value is None:
        return result
    if heading < 0:
        gap = ["\n"] if result and not result[-1].endswith("\n") else []
        return [*result, *gap, f"[{table}]\n", mine]
    if not result[heading - 1].endswith("\n"):
        result[heading - 1] += "\n"
    return [*result[:heading], mine, *result[heading:]]


def _parsed(text: str) -> dict[str, dict[str, object]]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"berth.conf: {problem}") from None
