# SPDX-License-Identifier: Apache-2.0
"""Credentials of Slurm's own (`auth/slurm`): tokens that slurmctld, slurmd or sackd of this computer makes and checks.

They are asked over a UNIX socket, and know the user by the socket's peer. Slurm's name for it is SACK.
"""

import base64
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from policy.formats.errors import DaemonError
from policy.site.auth.munge import EXPIRED, REPLAYED, Credential

SOCKETS = ("/run/slurm/sack.socket", "/run/slurmctld/sack.socket", "/run/slurmdbd/sack.socket")
"""The sockets that Slurm's own programs try, in this order, unless SLURM_SACK_SOCKET names another one."""
NOT_VOUCHED = 1

_CREATE, _VERIFY = 64_001, 64_002
_ANY_PROTOCOL, _ANY_USER = 0, 0xFFFF_FFFF
_MOST_TOKEN = 16_384
_MOST_KEPT = 16_384
"""The most tokens that are remembered until they expire, so that none counts twice."""
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Claims:
    context: str
    uid: int
    made: int
    until: int
    payload: bytes


class Sack:
    """Slurm's credentials, for one thread at a time."""

    def __init__(self, sockets: Sequence[str] = ()) -> None:
        named = os.environ.get("SLURM_SACK_SOCKET")
        self._sockets = sockets or ([named] if named else SOCKETS)
        self._taken: dict[bytes, float] = {}

    @property
    def is_there(self) -> bool:
        """Tells whether this computer has a daemon of Slurm that makes credentials."""
        return any(Path(path).exists() for path in self._sockets)

    def encode(self, payload: bytes) -> bytes:
        """Returns a credential by which every host of this cluster knows the user who wrote a text."""
        answer = self._ask(_CREATE, struct.pack(">II", _ANY_USER, len(payload)) + payload)
        (length,) = struct.unpack(">I", answer[:4].rjust(4, b"\0"))
        token = answer[4 : 4 + length].rstrip(b"\0")
        if not token:
            raise DaemonError("Slurm makes no credential here (auth/slurm); the log of slurmd or slurmctld says why")
        return token

    def decode(self, credential: bytes) -> Credential:
        """Asks Slurm about a credential, which may be any bytes."""
        claims, now = _claims(credential), time.time()
        if claims is None or claims.context != "sack":
            return _refused(NOT_VOUCHED, "it is no credential of Slurm's")
        skew = round(now - claims.made)
        if claims.until < now:
            return _refused(EXPIRED, "it is too old", skew)
        # Slurm answers with four zeros to a valid credential, and hangs up on any other.
        if self._ask(_VERIFY, struct.pack(">I", len(credential) + 1) + credential + b"\0") != bytes(4):
            return _refused(NOT_VOUCHED, "Slurm does not vouch for it")
        if not self._is_new(credential, claims.until, now):
            return _refused(REPLAYED, "it was here before")
        return Credential(0, "", claims.uid, claims.payload, skew)

    def _is_new(self, credential: bytes, until: float, now: float) -> bool:
        if len(self._taken) >= _MOST_KEPT:
            self._taken = {taken: end for taken, end in self._taken.items() if end >= now}
        if credential in self._taken or len(self._taken) >= _MOST_KEPT:
            return False
        self._taken[credential] = until
        return True

    def _ask(self, call: int, body: bytes) -> bytes:
        """Returns the answer of the first daemon that takes the call; a daemon hangs up to refuse."""
        message = struct.pack(">HII", _ANY_PROTOCOL, 8 + len(body), call) + body
        problem = "there is none of its sockets"
        for path in self._sockets:
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
                connection.settimeout(_SECONDS)
                try:
                    connection.connect(path)
                    connection.sendall(message)
                    return _all_of(connection)
                except OSError as found:
                    problem = f"{path}: {found.strerror or found}"
        raise DaemonError(f"Slurm's credentials (auth/slurm) cannot be had: {problem}")


def _all_of(connection: socket.socket) -> bytes:
    answer = b""
    while len(answer) <= _MOST_TOKEN and (part := connection.recv(_MOST_TOKEN)):
        answer += part
    return answer


def _claims(token: bytes) -> _Claims | None:
    """Returns a token's claims, which are not checked yet; None if it is not a token."""
    body = [*token.split(b"."), b""][1]
    try:
        found = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        payload = base64.b64decode(found["payload"], validate=True)
        return _Claims(found["context"], int(found["uid"]), int(found["iat"]), int(found["exp"]), payload)
    except (ValueError, LookupError, TypeError):
        return None


def _refused(error: int, reason: str, skew: int = 0) -> Credential:
    return Credential(error, reason, -1, b"", skew)
