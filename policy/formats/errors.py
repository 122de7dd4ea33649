# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Berth's policy side.

    BerthError                    one sentence: what, where, what to do
    ├── FormatError               a text that does not follow docs/develop/formats.md
    ├── ConfigError               berth.conf
    ├── SlurmError                Slurm's commands failed
    │   ├── UnreadableError       Slurm answered in a form that Berth does not know
    │   └── TooLong               a text for a job's record is longer than Slurm takes
    ├── DaemonError               berthd cannot be reached, or cannot start
    ├── UsageError                a command was called in a wrong way
    └── Answer                    not a fault: an answer to a job's request, without a place
        ├── LeftToSlurm           Berth has no better place than plain Slurm
        │   ├── InSegments        Slurm is to choose its nodes in segments of topology/block
        │   └── Impossible        and Slurm most likely has no place at all
        ├── NotNow                a place exists, but not at this time
        │   ├── BadCompany        there is room, but beside packed jobs that would slow it, or that it would slow
        │   └── OutOfTime         the time for an answer is over before a place is found
        └── Never                 a Berth flag asks for what no machine here can give

The topology side has its own exceptions (`topology.errors`), because it imports nothing from the policy side.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.formats.arrays import Bools


class BerthError(Exception):
    """The base of all exceptions; its text is one sentence for a person: what, where, what to do."""

    number = 700
    """The number of its id (policy.formats.messages): that of its class, or the one that it was raised with."""

    def __init__(self, text: str = "", number: int | None = None) -> None:
        super().__init__(text)
        if number is not None:
            self.number = number


class FormatError(BerthError):
    """A text that does not follow docs/develop/formats.md."""

    number = 707


class ConfigError(BerthError):
    """A wrong setting in berth.conf."""

    number = 702


class SlurmError(BerthError):
    """Slurm could not be read or written."""

    number = 703


class NoAnswer(SlurmError):
    """Slurm's controller did not answer: it has refused nothing, and may have done what it was asked."""


class UnreadableError(SlurmError):
    """Slurm answered in a form that Berth does not know."""

    number = 704


class TooLong(SlurmError):
    """A text for a job's record is longer than Slurm takes; it was not written."""

    number = 705


class DaemonError(BerthError):
    """The daemon berthd cannot be reached, or cannot start."""

    number = 706


class UsageError(BerthError):
    """A command was called in a wrong way."""

    number = 701


class Answer(BerthError):
    """An answer to a request without a place."""


class LeftToSlurm(Answer):
    """The job goes on as a plain Slurm job; the text is the reason."""

    number = 201


class Impossible(LeftToSlurm):
    """No node that Berth knows could ever hold the job, so Slurm most likely refuses it; the text says why."""

    number = 222


class InSegments(LeftToSlurm):
    """Slurm's topology/block is to choose the job's nodes in segments of so many nodes."""

    number = 226

    def __init__(self, group: int, count: int, nodes: int, allowed: "Bools", few: str = "") -> None:
        """`count` nodes in segments of `nodes`, for groups of so many GPUs; `few` tells that too few nodes are up."""
        each = f"{nodes} nodes" if nodes > 1 else "one node"
        super().__init__(f"in segments of {each}, each in one NVLink domain, for groups of {group} GPUs{few}")
        self.group, self.count, self.nodes, self.allowed = group, count, nodes, allowed


class NotNow(Answer):
    """No place fits the job at this time."""

    number = 300


class BadCompany(NotNow):
    """There is room now, but only beside jobs with which not all would keep their speed, so the packed job waits."""

    number = 305


class OutOfTime(NotNow):
    """There may be a place, but the time for an answer is over."""

    number = 301


class Never(Answer):
    """No machine could ever meet the request; the text says what would work."""

    number = 401


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?`, or an empty text if no known word is close."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
