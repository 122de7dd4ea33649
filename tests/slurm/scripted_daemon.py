# SPDX-License-Identifier: Apache-2.0
"""Answers as a test says: the nth component of a job gets the nth reply. Runs where berthd would."""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "/run/berth/berthd.sock"


def answer(request: str, replies: list[dict[str, str]]) -> bytes:
    """The reply to a submit request; the test has escaped its values."""
    fields = dict(line.split("=", 1) for line in request.splitlines()[1:])
    reply = dict(replies[int(fields.get("het", "0"))])
    verb = reply.pop("verb")
    lines = [f"berth/1 {verb}", f"nonce={fields['nonce']}", *(f"{key}={value}" for key, value in reply.items())]
    return ("\n".join(lines) + "\n").encode("ascii")


def main(replies: list[dict[str, str]]) -> None:
    """Serves until killed; each request is printed for the test to read."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(SOCKET)
    os.chmod(SOCKET, 0o600)  # noqa: PTH101
    server.listen(16)
    while True:
        client, _ = server.accept()
        request = client.recv(65536).decode("ascii")
        sys.stdout.write(request + "\n")
        sys.stdout.flush()
        client.send(answer(request, replies))
        client.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
