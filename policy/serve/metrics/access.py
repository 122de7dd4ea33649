# SPDX-License-Identifier: Apache-2.0
"""Decides which readers may see the metrics, and which controller serves them, by slurmctld's own rules (Slurm 26.05).

slurmctld serves metrics to all users, unless PrivateData hides anything or MetricsAuthUsers names users; then it
requires a JSON web token. berthd has no such tokens: the site gives Prometheus one secret from a file.
"""

import hmac
import re
from pathlib import Path

from policy.site import log
from policy.site.privacy import SlurmRules

_FIRST_HOST = "SlurmctldHost[0]"
_SHOW = "show the token of [metrics] token_file as Authorization: Bearer TOKEN"
_HOST = re.compile(r"([^()\s]+)(?:\(([^()\s]+)\))?")


class Access:
    """One site's rules of access."""

    def __init__(self, rules: SlurmRules, token_file: Path | None) -> None:
        self._rules = rules
        self._token_file = token_file

    def refusal(self, authorization: str, *, is_for_holders: bool = False) -> str | None:
        """Returns why a request with this header is not served; None if it is."""
        if self._token_file is None:
            hides = "PrivateData in slurm.conf hides data; set [metrics] token_file in berth.conf"
            return _SHOW if is_for_holders else hides if self._is_private() else None
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            log.error(f"no metrics are served, {self._token_file} cannot be read: {problem}", 670)
            return "berthd cannot read its token, its log says why"
        word, _, given = authorization.partition(" ")
        if token and word.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return None
        return _SHOW

    def primary(self) -> str:
        """Returns the address of the first SlurmctldHost; empty if Slurm does not tell."""
        match = _HOST.fullmatch(self._rules.setting(_FIRST_HOST))
        return (match[2] or match[1]) if match else ""

    def _is_private(self) -> bool:
        # As with slurmctld, it does not matter which data are hidden.
        hides = bool(self._rules.visibility().hidden)
        return hides and "ignore_private_data" not in self._rules.setting("MetricsParameters").lower()
