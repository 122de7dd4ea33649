"""The segment: Berth's tagged part of a text that others write too (docs/formats.md, section 2), and its escaping.

>>> put("site note", {"state": "placed", "why": "best of 3"})
'site note[berth/1 state=placed why=best%20of%203]'
>>> fields("site note[berth/1 state=placed why=best%20of%203]")
{'state': 'placed', 'why': 'best of 3'}
>>> escape("a b%[c]"), unescape("a%20b%25%5Bc%5D")
('a%20b%25%5Bc%5D', 'a b%[c]')

Datagrams have the same escaping. Texts are `str` with undecodable bytes as surrogates, so that any bytes survive a
round trip.
"""

import re
import sys
from collections.abc import Mapping

from policy.formats.errors import FormatError

MAX_BODY = 4_096

_SHORT = 16
"""Longest value of which equal ones are one object."""

_SEGMENT = re.compile(r"\[berth/1((?: [a-z][a-z0-9_.-]{0,63}=[!-Z\\^-~]*)*)\]")
_LONG_NUMBER = re.compile(r"[0-9]{21}")
_NUMBERS = re.compile(r"[0-9.,:;@-]+")
_OTHER_VERSION = re.compile(r"\[berth/(?!1[ \]])([^ \]]{1,16})[ \]]")

_PLAIN = re.compile(r"[!-$&-Z\\^-~]*")
_PRINTABLE = re.compile(r"[ -~\n]*")
_ESCAPED_OR_STRAY = re.compile(rb"%([0-9A-F]{2})?")
_OF_BYTE = tuple(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256))


def body(values: Mapping[str, str]) -> str:
    """Returns the text between `[berth/1 ` and `]`."""
    return escape_all(values).replace("\n", " ")


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
    words = (word.partition("=") for word in match.group(1).split())
    values = {sys.intern(key): _shared(unescape(value)) for key, _, value in words}
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
    segment = f"[berth/1 {body(values)}]" if values else "[berth/1]"
    match = _SEGMENT.search(text)
    if match is None:
        return text + segment
    return text[: match.start()] + segment + text[match.end() :]


def too_long(values: Mapping[str, str]) -> bool:
    """Tells whether values are more than a segment may hold."""
    return len(body(values)) > MAX_BODY


def remove(text: str) -> str:
    """Returns the text without its segment."""
    match = _SEGMENT.search(text)
    return text if match is None else text[: match.start()] + text[match.end() :]


def escape(text: str) -> str:
    """Returns the text with every byte that the formats reserve written as %XX."""
    if _PLAIN.fullmatch(text):
        return text
    if text.isascii() and text.isprintable():
        # Nearly all texts are plain ASCII, and this runs in each submission.
        return _escape_printable(text)
    # translate() would move all of the text at each byte that it writes as three, where realloc() cannot grow in place.
    return "".join(map(_OF_BYTE.__getitem__, text.encode("utf-8", "surrogateescape")))


def escape_all(values: Mapping[str, str]) -> str:
    r"""Returns a line `key=value` for each value, which is escaped; keys are plain.

    >>> escape_all({"state": "placed", "why": "best of 3"})
    'state=placed\nwhy=best%20of%203'
    """
    text = "\n".join([f"{key}={value}" for key, value in values.items()])
    if text.count("\n") < len(values) and _PRINTABLE.fullmatch(text):
        # Nearly all texts are plain ASCII, and to look at them together takes a quarter of the time.
        return _escape_printable(text)
    return "\n".join([f"{key}={escape(value)}" for key, value in values.items()])


def _escape_printable(text: str) -> str:
    return text.replace("%", "%25").replace(" ", "%20").replace("[", "%5B").replace("]", "%5D")


def unescape(text: str) -> str:
    """Returns the text that `escape` was given; a stray % is an error."""
    if "%" not in text:
        return text
    return _ESCAPED_OR_STRAY.sub(_byte, text.encode("ascii")).decode("utf-8", "surrogateescape")


def _byte(match: re.Match[bytes]) -> bytes:
    digits: bytes | None = match.group(1)
    if digits is None:
        raise FormatError("a % that two upper-case hexadecimal digits do not follow; write it as %25")
    return bytes([int(digits, 16)])
