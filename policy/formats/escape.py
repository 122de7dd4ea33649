"""Percent-escaping, as in docs/formats.md, "Escaping".

    >>> escape("a b%[c]")
    'a%20b%25%5Bc%5D'
    >>> unescape("a%20b%25%5Bc%5D")
    'a b%[c]'

Texts are `str` with undecodable bytes as surrogates, so that any bytes survive a round trip.
"""

import re

from policy.formats.errors import FormatError

_PLAIN = re.compile(r"[!-$&-Z\\^-~]*")
_ESCAPED_OR_STRAY = re.compile(rb"%([0-9A-F]{2})?")
_TABLE = {byte: f"%{byte:02X}" for byte in range(256) if byte <= 0x20 or byte > 0x7E or chr(byte) in "%[]"}


def escape(text: str) -> str:
    """Returns the text with every byte that the formats reserve written as %XX."""
    if _PLAIN.fullmatch(text):
        return text
    if text.isascii() and text.isprintable():
        # Nearly all texts are plain ASCII. This takes a tenth of the time of translate(), and runs in each submission.
        return text.replace("%", "%25").replace(" ", "%20").replace("[", "%5B").replace("]", "%5D")
    # Latin-1 maps each byte to the character of the same number, so translate() works on bytes.
    return text.encode("utf-8", "surrogateescape").decode("latin-1").translate(_TABLE)


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
