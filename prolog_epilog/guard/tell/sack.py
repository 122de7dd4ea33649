# SPDX-License-Identifier: Apache-2.0
"""Slurm's own credential (`auth/slurm`): slurmd of this node makes it, and knows by the socket's peer who asks."""

import os
import socket
import struct
from pathlib import Path

SOCKET = "/run/slurm/sack.socket"
_CREATE = 64_001
_ANY_PROTOCOL, _ANY_USER = 0, 0xFFFF_FFFF
_MOST = 16_384


def path() -> str:
    """Returns where slurmd or sackd listens; empty where the cluster has other credentials."""
    found = os.environ.get("SLURM_SACK_SOCKET", SOCKET)
    return found if Path(found).exists() else ""


def credential(payload: bytes, where: str, seconds: float) -> bytes:
    """Has Slurm sign a text; empty where it does not, raises OSError where nothing listens."""
    body = struct.pack(">II", _ANY_USER, len(payload)) + payload
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(where)
        connection.sendall(struct.pack(">HII", _ANY_PROTOCOL, 8 + len(body), _CREATE) + body)
        while len(answer) < _MOST and (part := connection.recv(_MOST)):
            answer += part
    # The length of the text, and the text with the zero behind it.
    return answer[4:].rstrip(b"\0")
