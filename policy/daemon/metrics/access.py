"""Decides who may read the metrics, and which controller serves them, by the rules of slurmctld's own (Slurm 26.05).

slurmctld serves metrics to everybody, unless PrivateData hides anything or MetricsAuthUsers names users; then it wants
a JSON web token. berthd has no such tokens: the site gives Prometheus one word from a file.
"""

import hmac
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from policy.formats.errors import SlurmError
from policy.site import log

LOOK_EVERY = 60.0
"""Seconds between looks at Slurm's configuration, and ..."""
AGAIN_AFTER = 5.0
"""... while it could not be read yet."""

_FIRST_HOST = "SlurmctldHost[0]"
_HOST = re.compile(r"([^()\s]+)(?:\(([^()\s]+)\))?")


class Access:
    """The rules of one site."""

    def __init__(self, slurm_config: Callable[[], Mapping[str, str]], token_file: Path | None) -> None:
        self._slurm_config = slurm_config
        self._token_file = token_file
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._config: Mapping[str, str] | None = None

    def refusal(self, authorization: str) -> str | None:
        """Returns why metrics are not served to a request with this header; None if they are."""
        if self._token_file is None:
            hides = "PrivateData in slurm.conf hides data; set [metrics] token_file in berth.conf"
            return hides if self._is_private() else None
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            log.error(f"no metrics are served, {self._token_file} cannot be read: {problem}", 670)
            return "berthd cannot read its token, its log says why"
        word, _, given = authorization.partition(" ")
        if token and word.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return None
        return "show the token of [metrics] token_file as Authorization: Bearer TOKEN"

    def holds_token(self, authorization: str) -> bool:
        """Tells whether a request shows the site's token; without a token file none can."""
        return self._token_file is not None and self.refusal(authorization) is None

    def primary(self) -> str:
        """Returns the address of the first SlurmctldHost; empty if Slurm does not tell."""
        match = _HOST.fullmatch(self._look().get(_FIRST_HOST, ""))
        return (match[2] or match[1]) if match else ""

    def _is_private(self) -> bool:
        config = self._look()
        # slurmctld does the same. While nothing is known of Slurm, data count as private.
        hides = config.get("PrivateData", "all").lower() not in {"none", "(null)", ""}
        return hides and "ignore_private_data" not in config.get("MetricsParameters", "").lower()

    def _look(self) -> Mapping[str, str]:
        # Slurm may be slow to answer: those who come meanwhile go by what is known, if anything is.
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
            log.error(f"who may read metrics is decided by what was known of Slurm: {problem}", 671)
