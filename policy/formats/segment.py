# SPDX-License-Identifier: Apache-2.0
"""The segment: Berth's tagged part of a text that others write too (docs/develop/formats.md, section 2).

>>> put("site note", {"state": "placed", "why": "best of 3"})
'site note[berth/1 state=placed why=best%20of%203]'
>>> fields("site note[berth/1 state=placed why=best%20of%203]")
{'state': 'placed', 'why': 'best of 3'}

Its values are escaped as those of a datagram. Texts are `str` with undecodable bytes as surrogates, so that any bytes
survive a round trip.
"""

import re
import sys
from collections.abc import Mapping

from policy.formats.errors import FormatError
from policy.formats.wire import unescape, words

MAX_BODY = 4_096

_SHORT = 16
"""Longest value of which equal ones are one object."""

_SEGMENT = re.compile(r"\[berth/1((?: [a-z][a-z0-9_.-]{0,63}=[!-Z\\^-~]*)*)\]")
_LONG_NUMBER = re.compile(r"[0-9]{21}")
_NUMBERS = re.compile(r"[0-9.,:;@-]+")
_OTHER_VERSION = re.compile(r"\[berth/(?!1[ \]])([^ \]]{1,16})[ \]]")


def fields(text: str) -> dict[str, str] | None:
    """Returns the values of the segment in a text, or None if it has none; raises FormatError for another version."""
    match = _SEGMENT.search(text)
    if match is None:
        other = _OTHER_VERSION.search(text)
        if other is not None:
            raise FormatError(
                f"a segment of version berth/{other.group(1)}; this Berth knows berth/1, install the newer release"
            )
        return None
    parts = (word.partition("=") for word in match.group(1).split())
    values = {sys.intern(key): _shared(unescape(value)) for key, _, value in parts}
    # Berth writes no number that long, and Python refuses to read one of some thousand digits. The value of a flag
    # is the user's own text.
    if _LONG_NUMBER.search(match.group(1)):
        for key, value in values.items():
            if not key.startswith("f.") and _LONG_NUMBER.search(value) and _NUMBERS.fullmatch(value):
                raise FormatError(
                    f"a segment whose {key} is a number of more than 20 digits; Berth writes none so long"
                )
    return values


def _shared(value: str) -> str:
    """Returns one object for equal short values: tens of thousands of jobs have the same few."""
    return sys.intern(value) if len(value) <= _SHORT else value


def put(text: str, values: Mapping[str, str]) -> str:
    """Returns the text with its segment replaced, or appended if it had none."""
    segment = f"[berth/1 {words(values)}]" if values else "[berth/1]"
    match = _SEGMENT.search(text)
    if match is None:
        return text + segment
    return text[: match.start()] + segment + text[match.end() :]


def remove(text: str) -> str:
    """Returns the text without its segment."""
    match = _SEGMENT.search(text)
    return text if match is None else text[: match.start()] + text[match.end() :]
