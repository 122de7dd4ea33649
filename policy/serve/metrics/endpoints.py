# SPDX-License-Identifier: Apache-2.0
"""Berthd's metrics over HTTP: paths, statuses and the standby's answer are those of slurmctld 26.05.

* `/` lists the paths.
* `/livez`, `/healthz`: 204 if berthd answers, else 500.
* `/readyz`: 204 if it also has a fresh reading of Slurm and is in control, else 500. `?verbose` says which.
* `/metrics` lists the pages.
* `/metrics/PAGE` shows metrics; a standby sends the reader to the first SlurmctldHost.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from prometheus_client import exposition

from policy.formats.errors import DaemonError
from policy.serve.http_server import BoundedServer
from policy.serve.metrics.access import Access
from policy.serve.metrics.families import PAGES, MetricsPage, PageName, Sources
from policy.serve.metrics.hook_calls import HookCalls
from policy.serve.status import BerthdStatus
from policy.site import log
from policy.site.config import Config
from policy.site.metrics_state import ClusterState, read_metrics
from policy.site.overview import STALE_AFTER, StateFile
from policy.site.privacy import SlurmRules

_TEXT = "text/plain; charset=utf-8"
_ROOT = """berthd index of endpoints:
  '/readyz': check berthd places jobs
  '/livez': check berthd is running
  '/healthz': check berthd is running
  '/metrics': print available metric endpoints
"""
_INDEX = "".join(
    ["berthd index of metrics endpoints:\n", *(f"  '/metrics/{name}': get {what}\n" for name, what in PAGES.items())]
)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer to a GET request."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": _TEXT})


def _text(status: HTTPStatus, text: str, **headers: str) -> HttpReply:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpReply(status, text.encode(), {"Content-Type": _TEXT, **more})


class MetricsSite:
    """Answers requests; no sockets here."""

    def __init__(self, access: Access, sources: Callable[[], Sources], port: int) -> None:
        self._access = access
        self._sources = sources
        self._port = port

    def get(self, target: str, headers: Mapping[str, str]) -> HttpReply:
        """Returns the answer to a GET request."""
        path, _, query = target.partition("?")
        try:
            return self._get(path, query, headers)
        except Exception as fault:  # noqa: BLE001 - one request must not end the answers to all
            log.error(f"a fault of berthd's own, a request for {path[:100]!r} fails: {fault!r}", 672)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "berthd met a fault of its own, its log says which\n")

    def _get(self, path: str, query: str, headers: Mapping[str, str]) -> HttpReply:
        authorization = headers.get("Authorization") or ""
        if path in {"/livez", "/healthz"}:
            return HttpReply(HTTPStatus.NO_CONTENT if self._sources().status else HTTPStatus.INTERNAL_SERVER_ERROR)
        if path == "/readyz":
            return self._readiness(authorization, verbose=query == "verbose")
        if path == "/":
            return _text(HTTPStatus.OK, _ROOT)
        if path == "/metrics" or path.removeprefix("/metrics/") in PAGES:
            sources = self._sources()
            sent_on = self._sent_on(sources, path, query) or self._refused(path, authorization)
            return sent_on or (
                _text(HTTPStatus.OK, _INDEX)
                if path == "/metrics"
                else _page(path, sources, headers.get("Accept") or "")
            )
        return _failed(HTTPStatus.NOT_FOUND, path, "no such path")

    def _refused(self, path: str, authorization: str, *, is_for_holders: bool = False) -> HttpReply | None:
        why = self._access.refusal(authorization, is_for_holders=is_for_holders)
        return None if why is None else _failed(HTTPStatus.UNAUTHORIZED, path, why, WWW_Authenticate="Bearer")

    def _sent_on(self, sources: Sources, path: str, query: str) -> HttpReply | None:
        """Sends readers of a standby to the first controller, before anything is asked of them, as slurmctld does."""
        if sources.state is None or sources.state.in_control:
            return None
        host = self._access.primary()
        if not host:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "berthd: primary mode controller address unavailable\n")
        host = f"[{host}]" if ":" in host else host
        location = f"http://{host}:{self._port}{path}" + (f"?{query}" if query else "")
        return HttpReply(HTTPStatus.SEE_OTHER, headers={"Location": location})

    def _readiness(self, authorization: str, *, verbose: bool) -> HttpReply:
        if verbose and (refused := self._refused("/readyz", authorization, is_for_holders=True)):
            return refused
        sources = self._sources()
        age = sources.status.get("snapshot_age_ms", "")
        checks = {
            "answering": bool(sources.status),
            "primary": sources.state is not None and sources.state.in_control,
            "reading": age.isdigit() and int(age) <= 1_000 * STALE_AFTER,
        }
        if not all(checks.values()):
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, _told(checks) if verbose else "")
        return _text(HTTPStatus.OK, _told(checks)) if verbose else HttpReply(HTTPStatus.NO_CONTENT)


def _page(path: str, sources: Sources, accept: str) -> HttpReply:
    try:
        encode, kind = exposition.choose_encoder(accept)
    except Exception:  # noqa: BLE001 - the library reads what the client wrote
        return _failed(HTTPStatus.NOT_ACCEPTABLE, path, "the Accept header cannot be read")
    encoder = cast("Callable[[MetricsPage], bytes]", encode)
    page = MetricsPage(cast("PageName", path.removeprefix("/metrics/")), sources)
    return HttpReply(HTTPStatus.OK, encoder(page), {"Content-Type": kind})


def _failed(status: HTTPStatus, path: str, why: str, **headers: str) -> HttpReply:
    return _text(status, f"berthd HTTP server request for 'GET {path}':\nFailed: {why}\n", **headers)


def _told(checks: Mapping[str, bool]) -> str:
    return "".join(f"{name}:{'TF'[not passed]}\n" for name, passed in checks.items())


class MetricsServer(BoundedServer):
    """Serves one site on one port."""

    request_queue_size = 64

    def __init__(self, site: MetricsSite, address: str, port: int, each_turn: Callable[[], None] | None = None) -> None:
        """`each_turn` is called twice a second."""
        self.site = site
        self._each_turn = each_turn
        super().__init__((address, port), _Handler)

    def service_actions(self) -> None:
        """Cuts connections that last too long, and calls `each_turn`."""
        super().service_actions()
        if self._each_turn is not None:
            self._each_turn()


def make_server(config: Config, rules: SlurmRules, status: BerthdStatus, state_file: Path) -> MetricsServer:
    """Returns the server that berth.conf describes; it listens already."""
    hook = HookCalls(config.hook_log) if config.hook_log is not None else None
    options, file = config.metrics, StateFile(state_file, read_metrics)

    def sources() -> Sources:
        state: ClusterState | None = None
        told: Mapping[str, str] = {}
        with suppress(OSError):
            state = file.read()
        with suppress(DaemonError):
            told = status.told()
        return Sources(state, told, hook)

    site = MetricsSite(Access(rules, options.token_file), sources, options.port)
    return MetricsServer(site, options.address, options.port, hook.look if hook is not None else None)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "berthd"
    sys_version = ""
    timeout = 5.0

    def do_GET(self) -> None:
        """Answers one request."""
        reply = self.server.site.get(self.path, cast("Mapping[str, str]", self.headers))
        self.send_response(reply.status)
        for name, text in reply.headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Logs nothing: scrapes come all day."""
