# SPDX-License-Identifier: Apache-2.0
"""The wire `berth/1` (docs/develop/formats.md, 1): one datagram of text lines each way, whose values are escaped.

>>> escape("a b%[c]"), unescape("a%20b%25%5Bc%5D")
('a%20b%25%5Bc%5D', 'a b%[c]')
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.formats.errors import FormatError, nearest

VERSION = "berth/1"
REQUEST_BYTES = 65_536
REPLY_BYTES = 16_384

SUBMIT_KEYS = frozenset(
    {
        *("nonce", "uid", "test", "client", "array", "het", "held", "begin", "dependency", "exclusive", "no_requeue"),
        *("preflight", "time_limit"),
        *("name", "partition", "admitted", "account", "qos", "reservation", "licenses", "features", "prefer"),
        *("req_nodes", "exc_nodes"),
        *("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "cpus_per_tres", "mem_per_tres"),
        *("ntasks_per_tres", "sockets_per_node", "num_tasks", "ntasks_per_node", "cpus_per_task", "min_cpus"),
        *("threads_per_core", "ntasks_per_core", "switches", "switch_wait", "slurms_own", "enforce_binding"),
        *("pn_min_cpus", "min_nodes", "max_nodes", "mem_per_node", "mem_per_cpu", "gpus", "signal", "extra_bytes"),
    }
)

_DATAGRAM = re.compile(r"berth/1 ([a-z]+)\n((?:[a-z][a-z0-9_.-]{0,63}=[!-Z\\^-~]*\n)*)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NONCE = re.compile(r"[0-9a-f]{16}")
_PLAIN = re.compile(r"[!-$&-Z\\^-~]*")
_PRINTABLE = re.compile(r"[ -~\n]*")
_ESCAPED_OR_STRAY = re.compile(rb"%([0-9A-F]{2})?")
_OF_BYTE = tuple(chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256))


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded datagram: its verb, and its values unescaped."""

    verb: str
    fields: dict[str, str]


def encode(verb: str, fields: Mapping[str, str]) -> bytes:
    """Returns the datagram for a verb and its fields, in their order."""
    lines = f"{escape_all(fields)}\n" if fields else ""
    return f"{VERSION} {verb}\n{lines}".encode("ascii")


def decode(datagram: bytes) -> Message:
    """Reads a datagram; raises FormatError for anything that the format does not allow."""
    if len(datagram) > REQUEST_BYTES:
        raise FormatError(f"a datagram of {len(datagram)} bytes; {REQUEST_BYTES} are allowed")
    try:
        text = datagram.decode("ascii")
    except UnicodeDecodeError:
        raise FormatError("a datagram with bytes that are not ASCII; values are percent-escaped") from None
    match = _DATAGRAM.fullmatch(text)
    if match is None:
        raise FormatError(_what_is_wrong(text))
    lines = match.group(2).split("\n")[:-1]
    fields = dict([line.split("=", 1) for line in lines])
    if len(fields) != len(lines):
        raise FormatError("a datagram with a key that occurs twice")
    if "%" in text:
        fields = {key: unescape(value) for key, value in fields.items()}
    return Message(match.group(1), fields)


def check_submit(message: Message) -> None:
    """Raises FormatError if a message is not a submit request, has a bad nonce, or has an unknown key."""
    fields = message.fields
    if message.verb != "submit":
        raise FormatError(f"unknown verb {message.verb}; submit and status are known")
    if not _NONCE.fullmatch(fields.get("nonce", "")):
        raise FormatError("a submit request whose nonce is not 16 hexadecimal digits")
    if not fields.keys() <= SUBMIT_KEYS:
        for key in fields:
            if key not in SUBMIT_KEYS and not key.startswith("flag."):
                raise FormatError(f"unknown key {key} in a submit request{nearest(key, SUBMIT_KEYS)}")


def number(fields: Mapping[str, str], key: str) -> int | None:
    """Returns the number in a field, or None if the field is left out."""
    return whole(key, fields[key]) if key in fields else None


def whole(key: str, value: str) -> int:
    """Returns the number that a field's text is."""
    if not _NUMBER.fullmatch(value):
        raise FormatError(f"{key}={value}: a decimal number without sign or leading zeros belongs there")
    return int(value)


def _what_is_wrong(text: str) -> str:
    first, _, rest = text.partition("\n")
    version = first.split(" ", 1)[0]
    if version != VERSION:
        return (
            f"a datagram that starts with {version[:32]!r}; this berthd speaks {VERSION}, install both from one release"
        )
    if not re.fullmatch(r"berth/1 [a-z]+", first):
        return "a datagram whose first line is not 'berth/1 VERB'"
    if not rest.endswith("\n"):
        return "a datagram whose last line does not end"
    return "a datagram with a line that is not key=value, percent-escaped"


def words(values: Mapping[str, str]) -> str:
    """Returns `key=value` for each value in one line, as a segment holds them."""
    return escape_all(values).replace("\n", " ")


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
    # Nearly all reserved bytes are these, and this runs for each job that has changed.
    plain = text.replace("%20", " ").replace("%5B", "[").replace("%5D", "]")
    if plain.count("%") == plain.count("%25"):
        return plain.replace("%25", "%")
    return _ESCAPED_OR_STRAY.sub(_byte, text.encode("ascii")).decode("utf-8", "surrogateescape")


def _byte(match: re.Match[bytes]) -> bytes:
    digits: bytes | None = match.group(1)
    if digits is None:
        raise FormatError("a % that two upper-case hexadecimal digits do not follow; write it as %25")
    return bytes([int(digits, 16)])
