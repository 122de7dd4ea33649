# SPDX-License-Identifier: Apache-2.0
"""Asks berthd's answering process for its status at most once a second, for all listeners."""

import threading
import time
from collections.abc import Callable, Mapping

from policy.formats.errors import DaemonError

STATUS_FOR = 1.0
"""Seconds for which an answer, or the reason why there is none, is used again."""


class BerthdStatus:
    """The last status; a thread that asks while another one waits for berthd gets the same answer."""

    def __init__(self, ask: Callable[[], Mapping[str, str]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._told: Mapping[str, str] | DaemonError = {}

    def told(self) -> Mapping[str, str]:
        """Returns the status; raises DaemonError with the reason if berthd does not answer."""
        with self._lock:
            if time.monotonic() - self._asked_at > STATUS_FOR:
                try:
                    self._told = self._ask()
                except DaemonError as problem:
                    self._told = problem
                self._asked_at = time.monotonic()
            told = self._told
        if isinstance(told, DaemonError):
            raise DaemonError(str(told))
        return told
