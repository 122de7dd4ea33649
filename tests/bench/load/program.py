# SPDX-License-Identifier: Apache-2.0
"""Stands in for berth-slurm: hands its input and output to whoever plays Slurm, and waits for that one's end."""

from __future__ import annotations

import socket
import sys


def main() -> int:
    """Argument: the socket of Slurm on paper."""
    path, *words = sys.argv[1:]
    if words == ["--version"]:
        sys.stdout.write("26.05.0\n")
        return 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(path)
        socket.send_fds(channel, [b"berth-slurm"], [0, 1])
        channel.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
