"""Reads what the metrics are made from: the planner's state file, berthd's status and the hook log."""

import threading
from collections.abc import Mapping
from pathlib import Path

from policy.formats.errors import DaemonError
from policy.serve.metrics.families import Sources
from policy.serve.metrics.hook_calls import HookCalls
from policy.serve.status import BerthdStatus
from policy.site.metrics_state import ClusterState, read_metrics


class Readings:
    """Reads the state of berthd anew for each scrape."""

    def __init__(self, status: BerthdStatus, state_file: Path, hook: HookCalls | None) -> None:
        self._status = status
        self._state_file = state_file
        self._hook = hook
        self._lock = threading.Lock()
        self._state: tuple[tuple[int, int] | None, ClusterState | None] = (None, None)

    def sources(self) -> Sources:
        """Returns all that the metrics are made from."""
        with self._lock:
            return Sources(self._cluster(), self._answerer(), self._hook)

    def _answerer(self) -> Mapping[str, str]:
        try:
            return self._status.told()
        except DaemonError:
            return {}

    def _cluster(self) -> ClusterState | None:
        try:
            found = self._state_file.stat()
        except OSError:
            return None
        stamp = found.st_ino, found.st_mtime_ns
        if self._state[0] != stamp:
            self._state = stamp, read_metrics(self._state_file)
        return self._state[1]
