# SPDX-License-Identifier: Apache-2.0
"""Levels of log lines, for journald alone."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
CODE = "from policy.site import log; log.info('one'); log.error('two')"


def lines(file: Path, stream: str) -> list[str]:
    """What a program logs to a file, to which systemd says that journald listens."""
    with file.open("w") as out:
        stat = os.fstat(out.fileno())
        told = stream.format(device=stat.st_dev, inode=stat.st_ino)
        environment = {**os.environ, "JOURNAL_STREAM": told}
        subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, stderr=out, check=True, timeout=60)
    return file.read_text().splitlines()


def test_lines_for_journald_begin_with_their_level(tmp_path: Path) -> None:
    told = lines(tmp_path / "log", "{device}:{inode}")

    assert told == ["<6>berthd: one [BERTH-600]", "<3>berthd: error: two [BERTH-600]"]


def test_lines_for_other_readers_have_none(tmp_path: Path) -> None:
    told = lines(tmp_path / "log", "{device}:1")

    assert told == ["berthd: one [BERTH-600]", "berthd: error: two [BERTH-600]"]
