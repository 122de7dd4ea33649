# SPDX-License-Identifier: Apache-2.0
r"""Reads and changes Slurm's configuration texts, with every byte that is not changed left as it is.

Slurm joins lines that end with a backslash, ends each line at an unescaped `#`, and takes keys in any case, with
blanks around `=`. A `ConfLine` is such a joined line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

_JOINT = "\0"
"""Stands for each character between two lines that Slurm joins."""
_PAIR = re.compile(r'([A-Za-z][\w.\0]*)[ \t\0]*[-*+/]?\0*=[ \t\0]*("[^"]*"|[^\s"\0]\S*)')
_COMMENT = re.compile(r"(?<!\\)#")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""A line ends only at a newline for Slurm; str.splitlines splits at more characters."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value; `start` and `end` are those of the value in the line's text, quotes included."""

    key: str
    value: str
    start: int
    end: int


@dataclass(frozen=True)
class ConfLine:
    """One line as Slurm reads it: several lines of the file if they end with a backslash."""

    raw: str

    @cached_property
    def _masked(self) -> str:
        """Returns `raw` with blanks for comments and joints for continuations: each value stands where it stood."""
        masked = ""
        for line in _LINE.findall(self.raw):
            code = _code(line)
            masked += code[:-1].ljust(len(line), _JOINT) if _continues(code) else code.ljust(len(line))
        return masked

    @property
    def text(self) -> str:
        """Returns the line without comments and continuations."""
        return self._masked.replace(_JOINT, "").strip()

    @cached_property
    def pairs(self) -> tuple[KeyValue, ...]:
        """Returns all keys of the line with their values, in order."""
        found = []
        for match in _PAIR.finditer(self._masked):
            value = match[2].rstrip(_JOINT)
            key, plain = match[1].replace(_JOINT, ""), value.replace(_JOINT, "").strip('"')
            found.append(KeyValue(key, plain, match.start(2), match.start(2) + len(value)))
        return tuple(found)

    @property
    def key(self) -> str:
        """Returns the first key in lower case, which says what the line is about; empty for a comment."""
        return self.pairs[0].key.lower() if self.pairs else ""

    def get(self, *keys: str) -> str | None:
        """Returns the value of the first of these keys that the line has."""
        found = self._find(keys)
        return found.value if found else None

    def _find(self, keys: Sequence[str]) -> KeyValue | None:
        wanted = {key.lower() for key in keys}
        return next((pair for pair in self.pairs if pair.key.lower() in wanted), None)

    def with_value(self, value: str, *keys: str) -> ConfLine:
        """Returns the line with another value of a key; adds the first of `keys` if it has none of them."""
        found = self._find(keys)
        if found is None:
            at = self.pairs[-1].end
            return ConfLine(f"{self.raw[:at]} {keys[0]}={value}{self.raw[at:]}")
        if found.value == value:
            return self
        quote = '"' if self.raw[found.start] == '"' else ""
        return ConfLine(f"{self.raw[: found.start]}{quote}{value}{quote}{self.raw[found.end :]}")


def _code(line: str) -> str:
    """Returns a line without its comment and its end."""
    return _COMMENT.split(line, maxsplit=1)[0].rstrip()


def _continues(code: str) -> bool:
    """Tells if Slurm joins the next line: an odd number of backslashes ends this one."""
    return (len(code) - len(code.rstrip("\\"))) % 2 == 1


def entries(text: str) -> list[ConfLine]:
    """Returns the lines as Slurm reads them; their `raw` texts together are the text."""
    found: list[ConfLine] = []
    begun = ""
    for line in _LINE.findall(text):
        begun += line
        if not _continues(_code(line)):
            found.append(ConfLine(begun))
            begun = ""
    return [*found, ConfLine(begun)] if begun else found


def values_of(texts: Iterable[str], key: str) -> list[str]:
    """Returns the values of all lines of a setting."""
    return [entry.get(key) or "" for text in texts for entry in entries(text) if entry.key == key.lower()]


def value_of(texts: Iterable[str], key: str) -> str:
    """Returns the value of a setting; the last line counts, as in Slurm, and without one the text is empty."""
    return (values_of(texts, key) or [""])[-1]


def words_of(value: str) -> list[str]:
    """Returns the words of a list with commas."""
    return [word.strip() for word in value.split(",") if word.strip()]


def set_value(texts: Sequence[str], key: str, value: str, *, alone: bool = False) -> list[str]:
    """Returns the texts with a setting: in the last line that has it, else in a new line at the end of the first text.

    With `alone` its other lines are removed.
    """
    changed = [entries(text) for text in texts]
    places = [(lines, place) for lines in changed for place, line in enumerate(lines) if line.key == key.lower()]
    if not places:
        gap = "" if not texts[0] or texts[0].endswith("\n") else "\n"
        return [f"{texts[0]}{gap}{key}={value}\n", *texts[1:]]
    *others, (lines, place) = places
    lines[place] = lines[place].with_value(value, key)
    for lines, place in others if alone else ():
        lines[place] = ConfLine("")
    return ["".join(line.raw for line in lines) for lines in changed]


def add_words(texts: Sequence[str], key: str, *words: str) -> list[str]:
    """Returns the texts with these words in a list."""
    present = words_of(value_of(texts, key))
    missing = [word for word in words if word not in present]
    return set_value(texts, key, ",".join([*present, *missing])) if missing else list(texts)
