"""Failures that say what was wanted: a segment names the keys that it has, and bytes show where they part."""

from __future__ import annotations

from collections.abc import Mapping


class Segment(dict[str, str]):
    """The keys of a job's segment; a key that is missing fails a test with what there is instead."""

    def __init__(self, values: Mapping[str, str], whose: object = "") -> None:
        super().__init__(values)
        self._whose = whose

    def __missing__(self, key: str) -> str:
        text = " ".join(f"{name}={value}" for name, value in self.items())
        raise AssertionError(f"the segment of job {self._whose or '?'} was to have {key!r}, and has only: {text}")


def difference(wanted: bytes, found: bytes) -> list[str]:
    r"""Returns lines on where two texts of bytes part: the place, and the line around it in each.

    >>> difference(b"a=1\nb=2\n", b"a=1\nb=3\n")
    ['bytes part at 6, in line 2', "one:   b'b=2\\n'", "other: b'b=3\\n'"]
    """
    at = next((n for n, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), min(len(wanted), len(found)))
    begin = wanted.rfind(b"\n", 0, at) + 1
    lines = [text[max(begin, at - 60) : at + 60].splitlines(keepends=True)[:1] or [b""] for text in (wanted, found)]
    line = wanted[:at].count(b"\n") + 1
    sizes = "" if len(wanted) == len(found) else f"; {len(wanted)} bytes beside {len(found)}"
    return [
        f"bytes part at {at}, in line {line}{sizes}",
        f"one:   {lines[0][0]!r}",
        f"other: {lines[1][0]!r}",
    ]
