# SPDX-License-Identifier: Apache-2.0
"""Collects sacct's lines into one file, which berth report, berth simulate and berth web read.

The file is what sacct writes, with a header, and with the columns that all of them need. Each run is in it once. Of
comments only Berth's own segment is kept. Names can be replaced: the same name becomes the same word within one file,
and the name cannot be found from the word.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from policy.formats import segment
from policy.formats.errors import FormatError, SlurmError
from policy.report import rows

COLUMNS = (*rows.COLUMNS[:-1], "JobID", "JobName", "Partition", "QOS", "Timelimit", rows.COLUMNS[-1])
SEPARATOR = "\x1f"
"""The character between columns that sacct is asked for, since a job's name may hold any visible one."""
_NAMES = ("User", "Account", "JobName")
_CUT = str.maketrans('|"', "__")
"""Characters with a meaning to readers of tables."""
_ENDLESS = ("Unknown", "None", "")


@dataclass(slots=True)
class Collection:
    """The lines to keep, one day after the other."""

    hashed: bool
    """Replaces the names of users, accounts and jobs."""
    runs: int = 0
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def header(self) -> str:
        """Returns the first line."""
        return "|".join(COLUMNS)

    def day(self, lines: Iterable[str], begin: float, end: float, *, last: bool) -> Iterator[str]:
        """Yields the lines of runs that ended in this time, and in the last day those of runs that have not ended.

        So a run that sacct tells in several days is kept once.
        """
        source = iter(lines)
        if tuple(next(source, "").rstrip("\n").split(SEPARATOR)) != COLUMNS:
            raise SlurmError(
                "sacct did not name the columns that it was asked for; is its output changed by a wrapper?"
            )
        kept = False
        for line in source:
            values = line.rstrip("\n").split(SEPARATOR, len(COLUMNS) - 1)
            if len(values) != len(COLUMNS) or not values[0][:1].isdigit():
                continue  # the rest of a comment that has several lines
            row = dict(zip(COLUMNS, values, strict=True))
            if "." not in row["JobIDRaw"]:
                ended = row["End"] not in _ENDLESS
                kept = begin <= float(row["End"]) < end if ended else last
                self.runs += kept
            # A step tells how its run used the GPUs, and nothing else.
            if kept and ("." not in row["JobIDRaw"] or "gpuutil" in row["TRESUsageInTot"]):
                yield "|".join(self._shown(row).values())

    def _shown(self, row: Mapping[str, str]) -> dict[str, str]:
        shown = {name: value.translate(_CUT) for name, value in row.items()}
        shown["AdminComment"] = _segment(row["AdminComment"])
        if self.hashed:
            shown |= {name: self._word(shown[name]) for name in _NAMES}
        return shown

    def _word(self, name: str) -> str:
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:10] if name else ""


def _segment(text: str) -> str:
    """Returns Berth's segment alone."""
    try:
        said = segment.fields(text)
    except FormatError:
        return ""
    return segment.put("", said) if said else ""
