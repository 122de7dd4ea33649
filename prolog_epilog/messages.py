# SPDX-License-Identifier: Apache-2.0
"""The ids of the node's messages: a line ends with the id of its error, of its event, or of the program that wrote it.

The table of all ids, with what they mean, is docs/user/troubleshooting.md; a test compares the two.
"""

import re

PROLOG, EPILOG, GUARD, PREFLIGHT = 901, 902, 903, 904
"""Ids of lines without one of their own, by the program."""

_TAG = re.compile(r" \[BERTH-[1-9][0-9]{2}\]\Z")


def tagged(sentence: str, number: int) -> str:
    """Returns a sentence with its id at the end; one that has an id keeps it.

    A user's text in it makes no second line and changes nothing on a terminal.

    >>> tagged(tagged("it is gone", 916), 901)
    'it is gone [BERTH-916]'
    """
    clean = "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in sentence)
    return clean if _TAG.search(clean) else f"{clean} [BERTH-{number}]"


def numbered(problem: Exception) -> str:
    """Returns the sentence of an error with the id of its class, if it has one."""
    number = getattr(problem, "number", 0)
    return tagged(str(problem), number) if number else str(problem)
