# SPDX-License-Identifier: Apache-2.0
"""The stable ids of Berth's messages, of plugins, berthd, commands and `berth why`.

A message ends with its id in brackets. A number is never used again for something else, and stays when a text changes:

>>> tagged("it asks for no GPUs", 202)
'it asks for no GPUs [BERTH-202]'

docs/user/troubleshooting.md is the table of all numbers, with what they mean: 1xx places, 2xx left to Slurm, 3xx no
place now, 4xx refused, 5xx waits, 6xx berthd's log, 7xx commands, 8xx plugins, 9xx nodes. Tests hold the code to it.
"""

import re

MOST_BYTES = 512
"""Most bytes of a message that the plugin takes, with its id."""

_TAG = re.compile(r" \[BERTH-([1-9][0-9]{2})\]\Z")


def tag(number: int) -> str:
    """Returns what stands behind a message.

    >>> tag(101)
    ' [BERTH-101]'
    """
    return f" [BERTH-{number}]"


def tagged(text: object, number: int) -> str:
    """Returns a text with its id at the end; one that has an id keeps it, and control characters become `?`."""
    shown = readable(str(text))
    return shown if _TAG.search(shown) else f"{shown}{tag(number)}"


def readable(text: str) -> str:
    r"""Returns a text that changes nothing on a terminal: names and reasons may hold what users wrote.

    >>> readable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return text if text.isprintable() else "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def one_line(text: str) -> str:
    r"""Returns a readable text in which no line can end, so that it makes one line of a log.

    >>> one_line("a\nberthd: b")
    'a?berthd: b'
    """
    return readable(text).replace("\n", "?")


def untagged(text: str) -> tuple[str, int | None]:
    """Takes a message apart: its text, and the number of its id if it has one.

    >>> untagged("it is held [BERTH-504]"), untagged("it is held")
    (('it is held', 504), ('it is held', None))
    """
    match = _TAG.search(text)
    return (text, None) if match is None else (text[: match.start()], int(match[1]))
