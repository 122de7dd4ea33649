# SPDX-License-Identifier: Apache-2.0
"""Decides what each user may see of the cluster, by Slurm's PrivateData, for questions, metrics and the page.

Coordinators and operators, to whom Slurm shows more, count as other users.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from policy.formats.errors import SlurmError
from policy.site import log

LOOK_EVERY = 60.0
"""Seconds between two reads of Slurm's configuration."""
AGAIN_AFTER = 5.0
"""Seconds between two tries while it could not be read yet."""

_NOTHING = frozenset({"none", "(null)", ""})
_SLURM_USER = re.compile(r"[^(]*\(([0-9]+)\)")


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rules of PrivateData: the kinds of data that it hides, and the users from whom it hides nothing."""

    hidden: frozenset[str] = frozenset({"all"})
    trusted: frozenset[int] = frozenset()
    """root, Slurm's user, and the user of this process."""

    def shows(self, kind: Literal["jobs", "nodes"], viewer: int | None, owner: int | None = None) -> bool:
        """Tells whether a viewer may see all jobs or nodes, or those of one owner; None is a user who is not known."""
        own = viewer is not None and viewer == owner
        return own or viewer in self.trusted or not self.hidden & {kind, "all"}


class SlurmRules:
    """Slurm's configuration, by which users may see data; read once a minute, by the thread that asks then."""

    def __init__(self, slurm_config: Callable[[], Mapping[str, str]], own_uid: int) -> None:
        """`slurm_config` is called by one thread at a time."""
        self._slurm_config = slurm_config
        self._own = {0, own_uid}
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._config: Mapping[str, str] | None = None

    def visibility(self) -> Visibility:
        """Returns the rules in force; until Slurm has answered, everything is private."""
        config = self._look()
        words = {word.strip().lower() for word in config.get("PrivateData", "all").split(",")}
        user = _SLURM_USER.fullmatch(config.get("SlurmUser", ""))
        return Visibility(frozenset(words - _NOTHING), frozenset(self._own | ({int(user[1])} if user else set())))

    def setting(self, name: str) -> str:
        """Returns a setting of Slurm's configuration; empty if it has none."""
        return self._look().get(name, "")

    def _look(self) -> Mapping[str, str]:
        # Slurm may be slow to answer: meanwhile other threads use the last configuration, if there is one.
        if self._lock.acquire(blocking=self._config is None):
            try:
                self._look_again(time.monotonic())
            finally:
                self._lock.release()
        return self._config or {}

    def _look_again(self, now: float) -> None:
        if now - self._read_at < (LOOK_EVERY if self._config is not None else AGAIN_AFTER):
            return
        self._read_at = now
        try:
            self._config = self._slurm_config()
        except SlurmError as problem:
            log.error(f"PrivateData cannot be read, and its last known value stays in force: {problem}", 671)
