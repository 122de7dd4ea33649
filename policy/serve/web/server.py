# SPDX-License-Identifier: Apache-2.0
"""Serves the page by HTTP, read-only: files, JSON and events.

One poller reads for all viewers. An event says only that there is something new, so at most one event waits for each
viewer, however slow the viewer is.
"""

import gzip
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from math import isfinite, nan
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from policy.formats.job_plan import JobPlan
from policy.plan.answer.explain import rows
from policy.serve.http_server import BoundedServer
from policy.serve.web.access import COOKIE, NoAccessError, WebAccess
from policy.serve.web.model import SCHEMA_VERSION, WebJob, WebMoment, WebSource, seen_by
from policy.site.ahead import ahead_rows

MOST_VIEWERS = 200
"""The most open event streams; a later viewer gets an error, and may still load the page."""
MOST_KEPT = 64
"""The most replies that are cached."""
PATIENCE = 15.0
"""Seconds within which a request must come, and between two signs of life of an event stream."""
IDLE = 60.0
"""Seconds after the last request for which the overview is still read."""

_SCRIPTS = ("state", "draw", "room", "plan", "lists", "details", "app")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON = "application/json"
_GZIP_FROM = 1_024


class Exhibit:
    """Keeps the source, its replies for each kind of viewer, and the number of readings so far."""

    def __init__(self, source: WebSource) -> None:
        self.source = source
        self.viewers = threading.BoundedSemaphore(MOST_VIEWERS)
        self.version = 0
        self.asked = threading.Event()
        self.last_asked = time.monotonic()
        self._news = threading.Condition()
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], tuple[bytes, bytes]] = OrderedDict()

    def publish(self) -> None:
        """Tells all viewers that there is a new reading."""
        with self._lock:
            self._kept.clear()
        with self._news:
            self.version += 1
            self._news.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """Waits until the version differs from `version`, or for so many seconds; returns the present version."""
        with self._news:
            self._news.wait_for(lambda: self.version != version, seconds)
            return self.version

    def note_request(self) -> None:
        """Notes that there is a viewer."""
        self.last_asked = time.monotonic()
        self.asked.set()

    def room(self, viewer: int | None) -> tuple[bytes, bytes]:
        """Returns the room as this viewer may see it, plain and compressed."""
        hide = not self.source.visibility().shows("nodes", viewer)
        room = self.source.room()
        shown = replace(room, nodes=[], links={}) if hide else room
        return self._reply(("room", hide), shown.plain)

    def moment(self, viewer: int | None, at: float | None) -> tuple[bytes, bytes]:
        """Returns a moment as this viewer may see it, plain and compressed."""
        at = self._second(at)
        return self._reply(("moment", self._kind(viewer), at), lambda: self._seen(viewer, at).plain())

    def use(self, viewer: int | None) -> tuple[bytes, bytes]:
        """Returns what the GPUs do, as this viewer may see it, plain and compressed."""
        told = {"schema_version": SCHEMA_VERSION}
        return self._reply(("use", self._kind(viewer)), lambda: {**told, "use": self.source.use(viewer)})

    def job(self, viewer: int | None, name: str, at: float | None) -> dict[str, Any] | None:
        """Returns a job's facts, events and decision; None if it is not there, or this viewer may not see it."""
        moment = self._seen(viewer, self._second(at))
        job = next((one for one in moment.jobs if one.id == name), None)
        events = [[one.at, one.kind, one.text] for one in moment.events if one.job == name]
        if job is None and not events:
            return None
        told = {"schema_version": SCHEMA_VERSION, "job": name, "events": events}
        if job is None:
            return told
        ahead = self.source.ahead(job, viewer)
        return {**told, "facts": job.plain(), "story": [*ahead_rows(ahead), *self._story(job)], "ahead": ahead}

    def _story(self, job: WebJob) -> list[tuple[str, str]]:
        known = self.source.decision(job)
        if not known:
            return []
        # The page itself shows a simulation's times, on the simulation's clock.
        found = rows(0, job.state, JobPlan(known))
        clock = set() if self.source.live else {"expected", "decided", "moved on", "not before"}
        return [(name, text) for name, text in found if name != "job" and name not in clock]

    def _second(self, at: float | None) -> float | None:
        """Rounds a time of a simulation to the second, so that a cached reply serves the whole second."""
        room = self.source.room()
        return None if room.live or at is None else float(min(max(round(at), room.began), room.until))

    def _seen(self, viewer: int | None, at: float | None) -> WebMoment:
        return seen_by(viewer, self.source.moment(at), self.source.visibility())

    def _kind(self, viewer: int | None) -> object:
        """Returns a key that is the same for viewers who may see the same."""
        visibility = self.source.visibility()
        jobs, nodes = visibility.shows("jobs", viewer), visibility.shows("nodes", viewer)
        return nodes, None if jobs else ("only", viewer)

    def _reply(self, key: tuple[object, ...], make: Callable[[], Mapping[str, Any]]) -> tuple[bytes, bytes]:
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
            version = self.version
            text = json.dumps(make(), separators=(",", ":")).encode()
            made = text, gzip.compress(text, 5)
            if version == self.version:
                self._kept[key] = made
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return made


def poll(exhibit: Exhibit, read: Callable[[], object], every: float, stop: threading.Event) -> None:
    """Reads for all viewers until it is stopped; pauses while there are none."""
    while not stop.is_set():
        read()
        exhibit.publish()
        stop.wait(every)
        if time.monotonic() - exhibit.last_asked > IDLE:
            exhibit.asked.clear()
            while not stop.is_set() and not exhibit.asked.wait(1.0):
                pass


class WebHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; every other method is refused."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "berth", ""
    timeout = PATIENCE
    server: "WebServer"

    def handle_one_request(self) -> None:
        """Reads one of a connection's requests, each within a deadline of its own."""
        self.server.expect(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answers a request."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answers without a body."""
        self._answer()

    def _answer(self) -> None:
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, max_num_fields=8)
        except ValueError:
            self._say(HTTPStatus.BAD_REQUEST, "the address cannot be read")
            return
        if not self.server.is_our_name(self.headers.get("Host", "")):
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "this name is not ours; give it to berth web with --host-name")
            return
        try:
            if parts.path == "/" and (token := query.get("token", [""])[0]):
                self._sign_in(token, urlencode({name: value for name, (value, *_) in query.items() if name != "token"}))
                return
            viewer = self.server.access.viewer(self.client_address[0], self.headers)
        except NoAccessError as problem:
            self._say(HTTPStatus.UNAUTHORIZED, str(problem))
            return
        self.server.exhibit.note_request()
        self._route(parts.path, query, viewer)

    def _route(self, path: str, query: Mapping[str, list[str]], viewer: int | None) -> None:
        exhibit = self.server.exhibit
        try:
            at = float(query["at"][0]) if "at" in query else None
        except ValueError:
            at = nan
        if at is not None and not isfinite(at):
            self._say(HTTPStatus.BAD_REQUEST, "at is a number of seconds")
            return
        if path in _FILES:
            name, kind = _FILES[path]
            self._send(HTTPStatus.OK, *self.server.file(name), kind)
        elif path == "/api/room":
            self._send(HTTPStatus.OK, *exhibit.room(viewer), _JSON)
        elif path == "/api/moment":
            self._send(HTTPStatus.OK, *exhibit.moment(viewer, at), _JSON)
        elif path == "/api/use":
            self._send(HTTPStatus.OK, *exhibit.use(viewer), _JSON)
        elif path.startswith("/api/job/"):
            found = exhibit.job(viewer, unquote(path.removeprefix("/api/job/")), at)
            if found is None:
                self._say(HTTPStatus.NOT_FOUND, "this job neither runs nor waits, or is not yours to see")
            else:
                self._send(HTTPStatus.OK, json.dumps(found).encode(), b"", _JSON)
        elif path == "/api/events" and self.command == "GET":
            self._stream()
        else:
            self._say(HTTPStatus.NOT_FOUND, "there is no such page")

    def _stream(self) -> None:
        """Sends an event for each reading, until the viewer hangs up."""
        exhibit = self.server.exhibit
        if not exhibit.viewers.acquire(blocking=False):
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_VIEWERS} viewers are connected; try again later")
            return
        self.close_connection = True
        self.server.expect(self.connection, deadline=False)
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self._common_headers()
            self.send_header("Connection", "close")
            self.end_headers()
            version = -1
            while not self.server.stopped.is_set():
                now = exhibit.wait(version, self.server.patience)
                text = ": still here\n\n" if now == version else f"id: {now}\nevent: moment\ndata: {now}\n\n"
                version = now
                self.wfile.write(text.encode())
                self.wfile.flush()
                exhibit.note_request()
        except OSError:
            pass  # the viewer has gone
        finally:
            exhibit.viewers.release()

    def _sign_in(self, token: str, words: str) -> None:
        """Sets a token as a cookie, so that it does not stay in the address."""
        self.server.access.of_token(token)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"./?{words}" if words else "./")
        self.send_header("Set-Cookie", f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/")
        self._common_headers()
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, f"{text}\n".encode(), b"", "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, packed: bytes, kind: str) -> None:
        small = packed and len(body) >= _GZIP_FROM and "gzip" in self.headers.get("Accept-Encoding", "")
        sent = packed if small else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(sent)))
        if small:
            self.send_header("Content-Encoding", "gzip")
        self._common_headers()
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def _common_headers(self) -> None:
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Vary", "Accept-Encoding")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the standard library
        """Logs nothing: which user looks at which job is private."""


class WebServer(BoundedServer):
    """The server of the page."""

    most_connections = 512
    lives_for = PATIENCE
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        exhibit: Exhibit,
        access: WebAccess,
        names: frozenset[str] = frozenset(),
        embed_in: str = "",
        patience: float = PATIENCE,
    ) -> None:
        self.exhibit, self.access, self.patience = exhibit, access, patience
        self.stopped = threading.Event()
        self.policy = (
            f"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self' {embed_in}".strip()
        )
        self._names = frozenset({"localhost", "127.0.0.1", "[::1]", address[0].lower(), *map(str.lower, names)})
        folder = files("policy.serve.web") / "static"
        self._files = {name: _packed((folder / name).read_bytes()) for name, _ in _FILES.values()}
        super().__init__(address, WebHandler)

    def is_our_name(self, host: str) -> bool:
        """Tells whether a Host header names this server: else another site's page could read it by DNS rebinding."""
        name, colon, port = host.rpartition(":")
        return (name if colon and port.isdigit() else host).lower() in self._names

    def file(self, name: str) -> tuple[bytes, bytes]:
        """Returns a file of the page, plain and compressed."""
        return self._files[name]


def _packed(text: bytes) -> tuple[bytes, bytes]:
    return text, gzip.compress(text, 9)
