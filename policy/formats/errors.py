"""All the ways in which Berth's policy side says no.

    BerthError                    one sentence: what, where, what to do
    ├── FormatError               a text that is not what docs/formats.md says
    ├── ConfigError               berth.conf
    ├── SlurmError                Slurm's commands failed
    │   ├── UnreadableError       Slurm answered in a form that Berth does not know
    │   └── TooLong               what would be written into a job is longer than Slurm takes
    ├── DaemonError               berthd cannot be reached, or cannot start
    ├── UsageError                a command was called in a wrong way
    └── Answer                    not a fault: an answer to "where shall this job go?"
        ├── LeftToSlurm           Berth has no better place than plain Slurm
        │   └── Impossible        and Slurm most likely has none at all
        ├── NotNow                a place exists, but not at this time
        │   ├── BadCompany        there is room, beside packed jobs that would slow it, or it them
        │   └── OutOfTime         nobody waits long enough for an answer to know
        └── Never                 a Berth flag asks for what no machine here can give

The topology side has a tree of its own (`topology.errors`), because it imports nothing of ours.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class BerthError(Exception):
    """Base of all; its text is one sentence for a person."""


class FormatError(BerthError):
    """A text that does not follow docs/formats.md."""


class ConfigError(BerthError):
    """A wrong berth.conf."""


class SlurmError(BerthError):
    """Slurm could not be read or written."""


class UnreadableError(SlurmError):
    """Slurm answered in a form that Berth does not know."""


class TooLong(SlurmError):
    """What would be written into a job is longer than Slurm takes; it was not written."""


class DaemonError(BerthError):
    """Berthd cannot be reached, or cannot start."""


class UsageError(BerthError):
    """A command was called in a wrong way."""


class Answer(BerthError):
    """An answer that is not a place."""


class LeftToSlurm(Answer):
    """The job goes on as plain Slurm would take it; the text is the reason."""


class Impossible(LeftToSlurm):
    """No node that Berth knows could ever hold it, so Slurm most likely refuses it; the text says why."""


class NotNow(Answer):
    """Nothing fits at this time."""


class BadCompany(NotNow):
    """There is room now, but only beside jobs that a packed job rather waits for."""


class OutOfTime(NotNow):
    """There may be a place, but nobody waits long enough for an answer."""


class Never(Answer):
    """No machine could ever give it; the text says what would work."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no known word is near."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
