# SPDX-License-Identifier: Apache-2.0
"""The scores that berthd plans with, calibrated or refreshed by jobs; read again when their file changes."""

from pathlib import Path

from policy.cluster.fleet import Fleet, scores_on
from policy.daemon.known.scores_now import table_now
from policy.formats.arrays import Floats
from policy.site import log
from topology.errors import TopologyError
from topology.scores import Score, load


class ScoreTable:
    """The table of scores; if it cannot be read, all GPUs count as equally fast."""

    def __init__(self, path: Path | None, steps: Path | None = None) -> None:
        self._calibrated, self._steps = path, steps
        self._mark: tuple[object, ...] | None = None
        self._scores: tuple[Score, ...] = ()

    def refresh(self) -> bool:
        """Reads the table if it changed; tells whether it did."""
        if self._calibrated is None:
            return False
        path = table_now(self._calibrated, self._steps)
        mark = (path, *_stamp(path))
        if mark == self._mark:
            return False
        self._mark = mark
        self._scores = ()
        try:
            self._scores = load(path)
            log.info(f"{len(self._scores)} scores in {path}", 640)
        except TopologyError as problem:
            log.error(f"{problem}; all GPUs count as equally fast", 641)
        return True

    def on(self, fleet: Fleet) -> dict[str, Floats]:
        """Returns by application class the scores of a fleet's GPUs."""
        return scores_on(fleet, self._scores)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size
