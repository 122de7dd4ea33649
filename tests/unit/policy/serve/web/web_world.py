# SPDX-License-Identifier: Apache-2.0
"""A simulated day of three jobs, and a server of it."""

import http.client
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policy.placement.berth import BerthPolicy
from policy.serve.web.access import WebAccess
from policy.serve.web.model import WebSource
from policy.serve.web.server import Exhibit, WebServer
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.report.history import write_history
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "<img src=x onerror=alert(1)>"


def simulated_day(path: Path, nodes: int = 1) -> Path:
    """Two jobs that need a node, one after the other if there is only one, and a small one behind them."""
    jobs = [
        TraceJob("7", gpus=8, submit=0.0, work=600, limit=900, user="ada", name=HOSTILE),
        TraceJob("8", gpus=8, submit=10.0, work=600, limit=900, user="boris", name="second"),
        TraceJob("9", gpus=2, submit=20.0, work=300, limit=600, user="ada", name="third"),
    ]
    fleet = build(Layout(nodes=nodes, gpus_per_node=8))
    outcome = run(jobs, fleet, BerthPolicy(), SlurmSettings(berthd=True, delays=Delays(), history=True))
    write_history(outcome, fleet, str(path))
    return path


@contextmanager
def served(source: WebSource, access: WebAccess | None = None, patience: float = 0.2) -> Iterator[WebServer]:
    """A server on a free port of this host."""
    server = WebServer(("127.0.0.1", 0), Exhibit(source), access or WebAccess(), patience=patience)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.exhibit.publish()
        server.shutdown()
        server.server_close()
        thread.join(10)


def asked(
    server: WebServer, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[int, Mapping[str, str], bytes]:
    """A reply: status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def told(server: WebServer, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """A reply's JSON."""
    status, _, body = asked(server, path, headers)
    assert status == 200, body
    return json.loads(body)
