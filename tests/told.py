# SPDX-License-Identifier: Apache-2.0
"""Failures that say what was wanted: named values tell which there are, and bytes show where they part."""

from __future__ import annotations

from collections.abc import Mapping


class Told(dict[str, str]):
    """Named values of a reply, a record, ...; a missing one fails a test with those that there are instead.

    >>> Told({"JobState": "PENDING"}, "Slurm's record of job 7")["Restarts"]
    Traceback (most recent call last):
    AssertionError: Slurm's record of job 7 was to have 'Restarts', and has only: JobState=PENDING
    """

    def __init__(self, values: Mapping[str, str], whose: str) -> None:
        super().__init__(values)
        self._whose = whose

    def __missing__(self, key: str) -> str:
        text = " ".join(f"{name}={value}" for name, value in self.items()) or "nothing"
        raise AssertionError(f"{self._whose} was to have {key!r}, and has only: {text}")


class Segment(Told):
    """The values of a job's segment."""

    def __init__(self, values: Mapping[str, str], job: object = "") -> None:
        super().__init__(values, f"the segment of job {job or '?'}")


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
