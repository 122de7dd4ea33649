"""Berth's tagged segment in a text that belongs to others too (docs/formats.md, section 2).

>>> put("site note", {"state": "placed", "why": "best of 3"})
'site note[berth/1 state=placed why=best%20of%203]'
>>> fields("site note[berth/1 state=placed why=best%20of%203]")
{'state': 'placed', 'why': 'best of 3'}
"""

import re
from collections.abc import Mapping

from policy.formats.errors import FormatError
from policy.formats.escape import escape, unescape

MAX_BODY = 4_096

PINNED_STATES = frozenset({"placed", "waiting"})
"""Values of `state` with which a job holds a place."""

LATER = "later"
"""The `state` of a job for which no place was in sight; the planner gives it one."""

RELEASED = "released"
"""The `state` of a job that was given back to Slurm for good."""

OBSERVED = "observed"
"""The `state` of a job that Berth only watches: it says what it would have done."""

UNDER_WAY = frozenset({"move_until", "move_for", "move_to", "move_text"})
"""What stands in the segment of a job that is being moved, until it has its new place."""

_SEGMENT = re.compile(r"\[berth/1((?: [a-z][a-z0-9_.-]{0,63}=[!-Z\\^-~]*)*)\]")
_LONG_NUMBER = re.compile(r"[0-9]{21}")
_NUMBERS = re.compile(r"[0-9.,:;@-]+")
_OTHER_VERSION = re.compile(r"\[berth/(?!1[ \]])([^ \]]{1,16})[ \]]")


def body(values: Mapping[str, str]) -> str:
    """What stands between `[berth/1 ` and `]`."""
    return " ".join([f"{key}={escape(value)}" for key, value in values.items()])


def fields(text: str) -> dict[str, str] | None:
    """The values of the segment in a text, or None where there is none; a `FormatError` where it is none of ours."""
    match = _SEGMENT.search(text)
    if match is None:
        other = _OTHER_VERSION.search(text)
        if other is not None:
            raise FormatError(
                f"a segment of version berth/{other.group(1)}; this Berth knows berth/1, install the newer release"
            )
        return None
    values = {key: unescape(value) for key, _, value in (word.partition("=") for word in match.group(1).split())}
    # No number of ours is so long, and Python reads none of some thousand digits. A flag's value is its user's.
    if _LONG_NUMBER.search(match.group(1)):
        for key, value in values.items():
            if not key.startswith("f.") and _LONG_NUMBER.search(value) and _NUMBERS.fullmatch(value):
                raise FormatError(
                    f"a segment whose {key} is a number of more than 20 digits; Berth writes none so long"
                )
    return values


def put(text: str, values: Mapping[str, str]) -> str:
    """The text with its segment replaced, or appended where it had none."""
    segment = f"[berth/1 {body(values)}]" if values else "[berth/1]"
    match = _SEGMENT.search(text)
    if match is None:
        return text + segment
    return text[: match.start()] + segment + text[match.end() :]


def remove(text: str) -> str:
    """The text without its segment."""
    match = _SEGMENT.search(text)
    return text if match is None else text[: match.start()] + text[match.end() :]
