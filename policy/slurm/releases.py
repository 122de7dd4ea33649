# SPDX-License-Identifier: Apache-2.0
"""Slurm's releases: those that Berth was tested with, and newer ones, which `berth doctor release` has to try."""

import re
from pathlib import Path

Release = tuple[int, int]

OLDEST: Release = (24, 11)
NEWEST: Release = (26, 5)
"""The tests have run on these two releases, and on those between them."""
TRIED = Path("/var/lib/berth/tried-releases")
"""The file with a line for each newer release on which `berth doctor release` has passed on this computer."""


def release_of(version: str) -> Release:
    """Returns a version's release, without its last number; zeros if the text has none.

    >>> release_of("26.05.3"), release_of("26.11.0-0rc1"), release_of("")
    ((26, 5), (26, 11), (0, 0))
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def name_of(release: Release) -> str:
    """Returns a release in Slurm's own form, such as 26.05."""
    return f"{release[0]}.{release[1]:02}"


def why_only_watched(version: str, tried: Path = TRIED) -> str:
    """Returns why Berth leaves all jobs to Slurm on this release; empty if it acts."""
    release = release_of(version)
    if release <= NEWEST or name_of(release) in _lines(tried):
        return ""
    tested = f"{name_of(OLDEST)} to {name_of(NEWEST)}"
    return (
        f"Slurm {name_of(release)} is newer than those that Berth was tested with ({tested}): run berth doctor release"
    )


def note_tried(version: str, tried: Path = TRIED) -> None:
    """Notes that `berth doctor release` has passed on this release; raises OSError."""
    tried.parent.mkdir(parents=True, exist_ok=True)
    lines = {*_lines(tried), name_of(release_of(version))}
    tried.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="ascii")


def _lines(tried: Path) -> frozenset[str]:
    try:
        return frozenset(tried.read_text(encoding="ascii").split())
    except (OSError, UnicodeDecodeError):
        return frozenset()
