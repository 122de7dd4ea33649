"""Reads what the metrics are made from: the planner's state file, berthd's status and the hook log."""

import threading
from collections.abc import Mapping
from pathlib import Path

from policy.formats.errors import DaemonError
from policy.serve.metrics.families import Sources
from policy.serve.metrics.hook_calls import HookCalls
from policy.serve.status import BerthdStatus
from policy.site.metrics_state import ClusterState, read_metrics
from policy.site.overview import StateFile


class Readings:
    """Reads the state of berthd anew for each scrape."""

    def __init__(self, status: BerthdStatus, state_file: Path, hook: HookCalls | None) -> None:
        self._status, self._hook, self._state = status, hook, StateFile(state_file, read_metrics)
        self._lock = threading.Lock()

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
            return self._state.read()
        except OSError:
            return None
