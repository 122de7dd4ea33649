# SPDX-License-Identifier: Apache-2.0
"""A berthd that says what a test wants, over connections that it keeps as the real one does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def berthd(path: Path, answer: Callable[[bytes], bytes | None]) -> Iterator[list[int]]:
    """Answers each request of each connection, or hangs up for None; how many requests came over each connection."""
    came: list[int] = []
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def hear(connection: socket.socket, number: int) -> None:
        with connection:
            while request := connection.recv(70_000):
                came[number] += 1
                reply = answer(request)
                if reply is None:
                    return
                try:
                    connection.send(reply)
                except OSError:
                    return

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            came.append(0)
            threads.append(threading.Thread(target=hear, args=(connection, len(came) - 1)))
            threads[-1].start()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(8)
        accepts = threading.Thread(target=serve)
        accepts.start()
        try:
            yield came
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepts.join()
            for connection in connections:
                with suppress(OSError):  # its thread closes it when it likes
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
    path.unlink()
