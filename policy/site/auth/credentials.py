# SPDX-License-Identifier: Apache-2.0
"""The cluster's credentials, by which berthd knows a message's user: MUNGE's, or those of Slurm's own auth/slurm."""

import re
from typing import Protocol

from policy.formats.errors import DaemonError
from policy.site.auth.munge import NO_MUNGED, Credential, Munge
from policy.site.auth.sack import Sack

MOST_BYTES = 4_096
"""The most bytes of a credential; MUNGE's take some 250, Slurm's up to 2,000."""
FORM = re.compile(rb"MUNGE:[A-Za-z0-9+/=]+:|eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){2}")
"""A credential of either kind."""


class _Kind(Protocol):
    def encode(self, payload: bytes) -> bytes: ...

    def decode(self, credential: bytes) -> Credential: ...


class Credentials:
    """Makes credentials of the kind that this host uses, and checks both kinds."""

    def __init__(self, munge_socket: str = "", sack: Sack | None = None) -> None:
        self._munge_socket = munge_socket
        self._sack = sack or Sack()
        self._munge: Munge | None = None

    @property
    def name(self) -> str:
        """Returns the kind that this host uses: Slurm's own if a daemon of Slurm makes them here, else MUNGE's."""
        return "auth/slurm" if self._sack.is_there else "auth/munge"

    def encode(self, payload: bytes) -> bytes:
        """Returns a credential by which every host of this cluster knows the user who wrote a text."""
        return self._of(is_munge=not self._sack.is_there).encode(payload)

    def decode(self, credential: bytes) -> Credential:
        """Checks a credential, which may be any bytes, by MUNGE or by Slurm."""
        try:
            return self._of(is_munge=credential.startswith(b"MUNGE:")).decode(credential)
        except DaemonError as problem:
            return Credential(NO_MUNGED, str(problem), -1, b"", 0)

    def _of(self, *, is_munge: bool) -> _Kind:
        if not is_munge:
            return self._sack
        if self._munge is None:
            self._munge = Munge(self._munge_socket)
        return self._munge
