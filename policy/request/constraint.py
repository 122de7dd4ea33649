# SPDX-License-Identifier: Apache-2.0
"""Slurm's constraint (`-C`), as far as Berth understands it: features, `|` between alternatives, `&` between the rest.

Each node of a job meets each condition. Counts, brackets (one alternative for all nodes) and nested parentheses are
left to Slurm.
"""

import re

_NAME = r"[A-Za-z0-9_.\-]+"
_OR = rf"{_NAME}(?:\|{_NAME})+"
_CONDITION = rf"(?:{_NAME}|\({_OR}\))"
_WHOLE = re.compile(rf"{_OR}|{_CONDITION}(?:&{_CONDITION})*")


def conditions(text: str) -> tuple[str, ...] | None:
    """Returns the conditions, each a feature or features joined by `|`; None if Berth does not understand the text.

    >>> conditions("big&(a|b)"), conditions("a|b"), conditions(""), conditions("a|b&c"), conditions("[a|b]")
    (('big', 'a|b'), ('a|b',), (), None, None)
    """
    if not text:
        return ()
    if not _WHOLE.fullmatch(text):
        return None
    return tuple(dict.fromkeys(one.strip("()") for one in text.split("&")))


def joined(text: str, *features: str) -> str:
    """Returns a constraint that also demands some features; empty ones add nothing.

    >>> joined("a|b", "h100"), joined("", "h100"), joined("a", "")
    ('(a|b)&h100', 'h100', 'a')
    """
    more = [one for one in features if one]
    if more and re.fullmatch(_OR, text):
        text = f"({text})"
    return "&".join([*([text] if text else []), *more])
