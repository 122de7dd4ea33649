# SPDX-License-Identifier: Apache-2.0
"""The bare daemon beside job_submit/echo: it answers each datagram with a fixed one and knows nothing."""

import contextlib
import socket
import sys
from pathlib import Path

ANSWER = b"berth/1 pass\nnonce=0123456789abcdef\n"


def serve(path: Path) -> None:
    """Answer on `path` until killed."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen(100)
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.send(ANSWER)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: echo_daemon.py SOCKET")
    serve(Path(sys.argv[1]))
