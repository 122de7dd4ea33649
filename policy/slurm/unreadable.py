# SPDX-License-Identifier: Apache-2.0
"""The faults of an unreadable record of Slurm; the reading goes on with the other jobs."""

from policy.formats.errors import FormatError, UnreadableError

RECORD_FAULTS = (FormatError, UnreadableError, LookupError, ValueError, TypeError, AttributeError)
"""Exceptions that readers of one job's record raise if it has another form than Berth knows."""


def why_unreadable(fault: Exception) -> str:
    """Returns what is wrong with a record, in one line."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
