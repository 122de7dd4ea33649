# SPDX-License-Identifier: Apache-2.0
"""A daemon of Slurm that makes credentials (`auth/slurm`), as its clients see it: the same bytes, another key."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KEY = b"made up for tests"
CREATE, VERIFY = 64_001, 64_002


def _word(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(payload: bytes, *, uid: int = 0, age: int = 0, context: str = "sack", key: bytes = KEY) -> bytes:
    """What slurmd gives to a user for a payload, `age` seconds ago."""
    made = int(time.time()) - age
    claims = {"iat": made, "exp": made + 60, "ver": 11520, "ruid": -1, "context": context, "cluster": "c"}
    claims |= {"uid": uid, "gid": uid, "host": "n1", "payload": base64.b64encode(payload).decode()}
    said = _word(b'{"alg":"HS256","typ":"JWT"}') + b"." + _word(json.dumps(claims).encode())
    return said + b"." + _word(hmac.digest(key, said, "sha256"))


def _is_true(found: bytes) -> bool:
    said, _, signature = found.rpartition(b".")
    return hmac.compare_digest(signature, _word(hmac.digest(KEY, said, "sha256")))


def _answer(connection: socket.socket) -> bytes:
    head = connection.recv(10, socket.MSG_WAITALL)
    _, length, call = struct.unpack(">HII", head)
    body = connection.recv(length - 8, socket.MSG_WAITALL)
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if call == CREATE:
        user, size = struct.unpack(">II", body[:8])
        assert (user, size) == (0xFFFF_FFFF, len(body) - 8)
        made = token(body[8:], uid=uid) + b"\0"
        return struct.pack(">I", len(made)) + made
    (size,) = struct.unpack(">I", body[:4])
    assert (call, size, body[-1:]) == (VERIFY, len(body) - 4, b"\0")
    return bytes(4) if _is_true(body[4:-1]) else b""


@contextmanager
def sack(path: Path) -> Iterator[str]:
    """Serves at this path until the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.sendall(_answer(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
