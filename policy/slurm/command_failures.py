# SPDX-License-Identifier: Apache-2.0
"""Returns in one sentence why a command of Slurm's could not be started, or failed."""

import shutil

from policy.formats.errors import NoAnswer, SlurmError

_UNANSWERED = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Transport endpoint is not connected",
)
"""Slurm's words for a controller that does not answer, to the command or to another process of Slurm's."""


def not_started(program: str, problem: OSError, advice: str = "install Slurm's client commands here") -> SlurmError:
    """Returns the error for a command that is not found, or cannot be started."""
    if shutil.which(program) is None:
        return SlurmError(f"{program} is not on PATH; {advice}")
    return SlurmError(f"{program} cannot be started: {problem.strerror}; look at its rights and at this host's limits")


def failed(told: str) -> SlurmError:
    """Returns the error for a message of a Slurm program."""
    return (NoAnswer if any(words in told for words in _UNANSWERED) else SlurmError)(told)
