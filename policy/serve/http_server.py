# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that a peer with slow or many connections cannot block for others.

A request has to be read, and its reply taken, within a deadline. At the bound, the peer with the most connections
loses the one that has been without a whole request for longest. A reverse proxy is one peer; its users' requests come
whole within milliseconds, so its slow connections are cut first as well.
"""

import contextlib
import socket
import sys
import threading
import time
from collections import Counter
from http.server import ThreadingHTTPServer
from math import inf
from typing import Any

from policy.formats.errors import DaemonError


class BoundedServer(ThreadingHTTPServer):
    """Runs a thread for each connection; their number and their time are bounded."""

    daemon_threads = True
    most_connections = 32
    lives_for = 10.0
    """Seconds for a request to come and its reply to be taken."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._open: dict[Any, tuple[float, str]] = {}
        """By connection, the start of its request and its peer."""
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, handler)
        except (OSError, OverflowError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else problem
            raise DaemonError(f"cannot listen on {address[0]} port {address[1]}: {why}; choose another port") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection; at the bound it closes another connection first."""
        with self._lock:
            if len(self._open) >= self.most_connections:
                peers = Counter(peer for _, peer in self._open.values())
                self._cut(min(self._open, key=lambda one: (-peers[self._open[one][1]], self._open[one][0])))
            self._open[request] = time.monotonic(), client_address[0]
        super().process_request(request, client_address)

    def expect(self, request: Any, *, deadline: bool = True) -> None:
        """Begins a connection's deadline anew, or lifts it."""
        with self._lock:
            if request in self._open:
                self._open[request] = time.monotonic() if deadline else inf, self._open[request][1]

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cuts connections that last too long."""
        with self._lock:
            for late in [one for one, (since, _) in self._open.items() if time.monotonic() - since > self.lives_for]:
                self._cut(late)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that hang up; reports every other fault."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _cut(self, request: Any) -> None:
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
