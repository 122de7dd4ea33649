"""The process that serves berthd's metrics. It gives way to all others, and berthd does without it if it ends.

It reads the planner's state from a file and the hook's calls from the hook log. It asks the answering process for its
counters as `berth status` does, at most every few seconds however often it is scraped.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from policy.daemon.metrics.access import Access
from policy.daemon.metrics.families import Sources
from policy.daemon.metrics.hook_calls import HookCalls
from policy.daemon.metrics.web import MetricsServer, MetricsSite
from policy.daemon.processes.beside import run_beside
from policy.formats.errors import DaemonError
from policy.site import ask
from policy.site.config import Config
from policy.site.metrics_state import ClusterState, read_metrics
from policy.site.overview import path_of
from policy.site.privacy import SlurmRules
from policy.slurm.interface import Gateway

STATUS_FOR = 5.0
"""Seconds for which what the answering process said is told on."""


class Readings:
    """Reads the state of berthd anew for each scrape."""

    def __init__(self, socket: Path, state_file: Path, hook: HookCalls | None) -> None:
        self._socket = socket
        self._state_file = state_file
        self._hook = hook
        self._lock = threading.Lock()
        self._status: tuple[float, Mapping[str, str]] = (float("-inf"), {})
        self._state: tuple[tuple[int, int] | None, ClusterState | None] = (None, None)

    def sources(self) -> Sources:
        """Returns all that the metrics are made from."""
        with self._lock:
            return Sources(self._cluster(), self._answerer(), self._hook)

    def _answerer(self) -> Mapping[str, str]:
        at, status = self._status
        # One that did not answer is asked again: asking it costs nothing then.
        if time.monotonic() - at > STATUS_FOR or not status:
            try:
                status = ask.status(self._socket)
            except DaemonError:
                status = {}
            self._status = time.monotonic(), status
        return status

    def _cluster(self) -> ClusterState | None:
        try:
            found = self._state_file.stat()
        except OSError:
            return None
        stamp = found.st_ino, found.st_mtime_ns
        if self._state[0] != stamp:
            self._state = stamp, read_metrics(self._state_file)
        return self._state[1]


def make_server(config: Config, socket: Path, access: Access) -> MetricsServer:
    """Returns the server that berth.conf describes; it listens already."""
    hook = HookCalls(config.hook_log) if config.hook_log is not None else None
    readings = Readings(socket, path_of(socket), hook)
    site = MetricsSite(access, readings.sources, config.metrics.port)
    return MetricsServer(site, config.metrics.address, config.metrics.port, hook.look if hook is not None else None)


def _end_with_berthd(server: MetricsServer) -> None:
    # berthd holds the other end: when it is gone, so is the reader's end of the file.
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 64):
            pass
    server.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves metrics until berthd ends."""
    return run_beside("berthd-metrics", arguments, _serve)


def _serve(config: Config, gateway: Gateway, berthd: Path) -> None:
    rules = SlurmRules(gateway.config, os.geteuid())
    server = make_server(config, berthd, Access(rules, config.metrics.token_file))
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not from this thread: `shutdown` waits for the loop that it interrupts here.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    threading.Thread(target=_end_with_berthd, args=(server,), daemon=True).start()
    with server:
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
