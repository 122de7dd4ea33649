"""Percent-escaping, as in docs/formats.md, "Escaping".

    >>> escape("a b%[c]")
    'a%20b%25%5Bc%5D'
    >>> unescape("a%20b%25%5Bc%5D")
    'a b%[c]'

Texts are `str` with undecodable bytes as surrogates, so that any bytes survive a round trip.
"""

import re
from collections.abc import Mapping

from policy.formats.errors import FormatError

_PLAIN = re.compile(r"[!-$&-Z\\^-~]*")
_PRINTABLE = re.compile(r"[ -~\n]*")
_ESCAPED_OR_STRAY = re.compile(rb"%([0-9A-F]{2})?")
_OF_BYTE = tuple(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256))


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
