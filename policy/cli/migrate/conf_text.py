r"""Reads and changes Slurm's configuration texts, with every byte that is not changed left as it is.

Slurm joins lines that end with a backslash, ends each line at an unescaped `#`, and takes keys in any case, with
blanks around `=`. A `ConfLine` is such a joined line. Its text without comments has an offset for each character, so
that a value is replaced where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["ConfLine", "KeyValue", "add_words", "entries", "remove_word", "set_value", "value_of", "words_of"]

_PAIR = re.compile(r'([A-Za-z][\w.]*)[ \t]*([-*+/]?)=[ \t]*("[^"]*"|[^\s"]\S*)')
_COMMENT = re.compile(r"(?<!\\)#")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""Only these end a line for Slurm; str.splitlines knows more."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value; `start` and `end` are those of the value in the entry's bytes, quotes included."""

    key: str
    value: str
    start: int
    end: int


@dataclass(frozen=True)
class ConfLine:
    """One line as Slurm reads it: several lines of the file where they end with a backslash."""

    raw: str

    @cached_property
    def _joined(self) -> tuple[str, list[int]]:
        """Returns the text without comments and continuations, and where each character stands in `raw`."""
        letters: list[str] = []
        offsets: list[int] = []
        at = 0
        for line in _LINE.findall(self.raw):
            for place, letter in enumerate(line[: _code(line)]):
                letters.append(letter)
                offsets.append(at + place)
            at += len(line)
        return "".join(letters), offsets

    @property
    def text(self) -> str:
        """The line without comments and continuations."""
        return self._joined[0]

    @cached_property
    def pairs(self) -> tuple[KeyValue, ...]:
        """All keys of the line with their values, in their order."""
        text, offsets = self._joined
        found = []
        for match in _PAIR.finditer(text):
            start, end = match.span(3)
            found.append(KeyValue(match[1], match[3].strip('"'), offsets[start], offsets[end - 1] + 1))
        return tuple(found)

    @property
    def key(self) -> str:
        """The first key in lower case, which says what the line is about; empty for a comment."""
        return self.pairs[0].key.lower() if self.pairs else ""

    def get(self, *keys: str) -> str | None:
        """Returns the value of the first of these keys that the line has."""
        found = self._find(keys)
        return found.value if found else None

    def _find(self, keys: Sequence[str]) -> KeyValue | None:
        wanted = {key.lower() for key in keys}
        return next((pair for pair in self.pairs if pair.key.lower() in wanted), None)

    def with_value(self, value: str, *keys: str) -> ConfLine:
        """Returns the line with another value of a key; the first of `keys` is added where it has none of them."""
        found = self._find(keys)
        if found:
            if found.value == value:
                return self
            quote = '"' if self.raw[found.start] == '"' else ""
            return ConfLine(f"{self.raw[: found.start]}{quote}{value}{quote}{self.raw[found.end :]}")
        at = self.pairs[-1].end
        return ConfLine(f"{self.raw[:at]} {keys[0]}={value}{self.raw[at:]}")


def _code(line: str) -> int:
    """Returns the length of a line's part before its comment, its continuation or its end."""
    code = _COMMENT.split(line, maxsplit=1)[0].rstrip()
    return len(code) - 1 if _continues(line) else len(code)


def _continues(line: str) -> bool:
    """Tells if Slurm joins the next line: an odd number of backslashes ends the line, comment and blanks apart."""
    code = _COMMENT.split(line, maxsplit=1)[0].rstrip()
    return (len(code) - len(code.rstrip("\\"))) % 2 == 1


def entries(text: str) -> list[ConfLine]:
    """Returns the lines as Slurm reads them; their `raw` texts together are the text."""
    found: list[ConfLine] = []
    begun = ""
    for line in _LINE.findall(text):
        begun += line
        if not _continues(line):
            found.append(ConfLine(begun))
            begun = ""
    return [*found, ConfLine(begun)] if begun else found


def value_of(texts: Iterable[str], key: str) -> str:
    """Returns the value of a setting; the last line counts, as in Slurm, and without one the text is empty."""
    found = [entry.get(key) or "" for text in texts for entry in entries(text) if entry.key == key.lower()]
    return found[-1] if found else ""


def words_of(value: str) -> list[str]:
    """Returns the words of a list with commas."""
    return [word.strip() for word in value.split(",") if word.strip()]


def set_value(texts: Sequence[str], key: str, value: str) -> list[str]:
    """Returns the texts with a setting: in the last line that has it, else in a new line at the end of the first."""
    return _change(texts, key, lambda _: value)


def add_words(texts: Sequence[str], key: str, *words: str, last: bool = False) -> list[str]:
    """Returns the texts with these words in a list; with `last` they come to its end even if they are there."""

    def added(value: str) -> str:
        present = words_of(value)
        if last and present[-len(words) :] != list(words):
            present = [word for word in present if word not in words]
        missing = [word for word in words if word not in present]
        return ",".join([*present, *missing]) if missing else value

    return _change(texts, key, added)


def remove_word(texts: Sequence[str], key: str, word: str) -> list[str]:
    """Returns the texts without a word of a list; the line stays where other words are left, else it goes."""
    result = []
    for text in texts:
        kept = []
        for entry in entries(text):
            present = words_of(entry.get(key) or "") if entry.key == key.lower() else []
            if word not in present:
                kept.append(entry)
            elif rest := [one for one in present if one != word]:
                kept.append(entry.with_value(",".join(rest), key))
        result.append("".join(entry.raw for entry in kept))
    return result


def _change(texts: Sequence[str], key: str, change: Callable[[str], str]) -> list[str]:
    changed = list(texts)
    for number in reversed(range(len(changed))):
        lines = entries(changed[number])
        for place in reversed(range(len(lines))):
            if lines[place].key == key.lower():
                lines[place] = lines[place].with_value(change(lines[place].get(key) or ""), key)
                changed[number] = "".join(line.raw for line in lines)
                return changed
    first = changed[0]
    gap = "" if not first or first.endswith("\n") else "\n"
    changed[0] = f"{first}{gap}{key}={change('')}\n"
    return changed
