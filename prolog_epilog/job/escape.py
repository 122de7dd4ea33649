# SPDX-License-Identifier: Apache-2.0
"""Percent-escaping as the formats use it (docs/develop/formats.md, "Escaping").

    >>> escape("a b%[c]")
    'a%20b%25%5Bc%5D'
    >>> unescape("a%20b%25%5Bc%5D")
    'a b%[c]'

Texts are `str` with undecodable bytes as surrogates, so that any bytes come back as they were.
"""

_RESERVED = frozenset(b"%[]")


def escape(text: str) -> str:
    """Returns the text with every byte that the formats reserve written as %XX."""
    return "".join(
        [
            f"%{byte:02X}" if byte <= 0x20 or byte > 0x7E or byte in _RESERVED else chr(byte)
            for byte in text.encode("utf-8", "surrogateescape")
        ]
    )


def unescape(text: str) -> str | None:
    """Returns the text that `escape` was given; None if it is no such text."""
    if not text.isascii():
        return None
    first, *rest = text.split("%")
    found = bytearray(first, "ascii")
    for part in rest:
        digits = part[:2]
        if len(digits) < 2 or digits.strip("0123456789ABCDEF"):
            return None
        found.append(int(digits, 16))
        found += part[2:].encode("ascii")
    return found.decode("utf-8", "surrogateescape")
