# SPDX-License-Identifier: Apache-2.0
"""The server: its paths and headers, who may look, and bounds."""

import getpass
import gzip
import http.client
import json
import select
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from policy.cli.main import main
from policy.formats.errors import ConfigError
from policy.serve.web import server as module
from policy.serve.web.access import WebAccess, read_tokens
from policy.serve.web.model import WebMoment
from policy.serve.web.server import Exhibit, poll
from policy.serve.web.simulated import SimulatedSource
from tests.unit.policy.daemon.test_notices import raise_file_limit
from tests.unit.policy.serve.web.test_web_model import StandInSlurm, job, live
from tests.unit.policy.serve.web.web_world import asked, served, simulated_day, told

ME = getpass.getuser()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> SimulatedSource:
    return SimulatedSource(simulated_day(tmp_path_factory.mktemp("day") / "day.json"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.css", "text/css; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/draw.js", "text/javascript; charset=utf-8"),
        ("/room.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/api/room", "application/json"),
        ("/api/moment", "application/json"),
    ],
)
def test_every_reply_says_its_kind_and_forbids_what_is_not_its_own(day: SimulatedSource, path: str, kind: str) -> None:
    with served(day) as server:
        status, headers, body = asked(server, path)

    assert (status, headers["Content-Type"]) == (200, kind), "a browser guesses no kind: nosniff"
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert body


@pytest.mark.parametrize("path", ["/none", "/../server.py", "/api/job/1/2", "/static/app.js"])
def test_other_paths_lead_nowhere(day: SimulatedSource, path: str) -> None:
    with served(day) as server:
        assert asked(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(day: SimulatedSource, method: str) -> None:
    with served(day) as server:
        assert asked(server, "/api/moment", method=method)[0] == 501


@pytest.mark.parametrize(("host", "status"), [("localhost:1", 200), ("[::1]", 200), ("evil.example", 421), ("", 421)])
def test_a_name_that_is_not_ours_gets_nothing(day: SimulatedSource, host: str, status: int) -> None:
    with served(day) as server:
        assert asked(server, "/api/moment", {"Host": host})[0] == status


def test_the_page_puts_no_data_into_markup() -> None:
    folder = Path(module.__file__).parent / "static"
    for file in folder.iterdir():
        text = file.read_text()
        assert "innerHTML" not in text
        assert "insertAdjacent" not in text
        assert "eval(" not in text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_job_has_its_story_and_its_moment(day: SimulatedSource) -> None:
    with served(day) as server:
        at = day.room().began + 100
        story = told(server, f"/api/job/8?at={at}")
        assert asked(server, "/api/job/404")[0] == 404
        assert asked(server, "/api/moment?at=noon")[0] == 400

    assert story["schema_version"] == 1
    assert dict(story["story"])["decision"].startswith("waits for GPUs that come free soonest [BERTH-")
    assert story["facts"]["gpus"] == 8


def test_a_job_is_found_whatever_characters_its_trace_names_it_by(tmp_path: Path) -> None:
    path = simulated_day(tmp_path / "day.json")
    path.write_text(path.read_text().replace('"8"', '"may/7+0 é"'))
    source = SimulatedSource(path)
    with served(source) as server:
        name = quote("may/7+0 é", safe="")
        assert told(server, f"/api/job/{name}?at={source.room().began + 100}")["facts"]["id"] == "may/7+0 é"


def test_long_replies_are_compressed_for_who_takes_that(day: SimulatedSource) -> None:
    with served(day) as server:
        _, headers, body = asked(server, "/app.js", {"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == asked(server, "/app.js")[2]


def first_lines(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


def until(connection: socket.socket, text: bytes) -> bytes:
    got = b""
    while text not in got:
        part = connection.recv(4_096)
        assert part, got
        got += part
    return got


def test_each_reading_is_one_event_for_each_viewer(day: SimulatedSource) -> None:
    with served(day) as server:
        viewers = [first_lines(server.server_address[1]) for _ in range(50)]
        for viewer in viewers:
            until(viewer, b"event: moment\ndata: 0\n\n")
        server.exhibit.publish()
        for viewer in viewers:
            until(viewer, b"event: moment\ndata: 1\n\n")
            viewer.close()


def test_viewers_beyond_the_bound_are_told_so_and_a_place_that_was_left_is_free(
    day: SimulatedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_VIEWERS", 2)
    with served(day, patience=0.05) as server:
        first, second = (first_lines(server.server_address[1]) for _ in range(2))
        until(first, b"data: 0")
        until(second, b"data: 0")
        assert asked(server, "/api/events")[0] == 503
        first.close()
        for _ in range(200):
            third = first_lines(server.server_address[1])
            if b"200 OK" in third.recv(4_096):
                break
            third.close()
            time.sleep(0.05)
        else:
            pytest.fail("the place of a viewer who left is never free again")
        third.close()
        second.close()


def test_fifty_viewers_cost_one_reading() -> None:
    slurm = StandInSlurm()
    slurm.jobs = [job(1, 11, holds=(1,))]
    source = live(slurm)
    with served(source) as server:
        stop = threading.Event()
        poller = threading.Thread(target=poll, args=(server.exhibit, source.read, 600.0, stop))
        poller.start()
        server.exhibit.wait(0, 20)
        for _ in range(50):
            assert len(told(server, "/api/moment")["jobs"]) == 1
        stop.set()
        poller.join(10)

    assert slurm.reads == 1


def test_private_jobs_of_others_leave_no_trace_in_any_reply() -> None:
    slurm = StandInSlurm("jobs")
    slurm.jobs = [job(4711, 12, holds=(6,), name="secret", account="hush")]
    source = live(slurm)
    source.read()
    with served(source, WebAccess(proxies=frozenset({"127.0.0.1"}))) as server:
        for path in ("/api/moment", "/api/room"):
            assert not any(word in asked(server, path)[2] for word in (b"4711", b"secret", b"hush"))
        assert asked(server, "/api/job/4711")[0] == 404
        own = told(server, "/api/moment", {"X-Remote-User": ME})

    # The user of the server sees all.
    assert [one["id"] for one in own["jobs"]] == ["4711"]


def test_a_header_counts_from_a_trusted_address_only(day: SimulatedSource) -> None:
    slurm = StandInSlurm("jobs")
    slurm.jobs = [job(1, 12, holds=(1,))]
    source = live(slurm)
    source.read()
    with served(source, WebAccess(proxies=frozenset({"192.0.2.1"}))) as server:
        assert told(server, "/api/moment", {"X-Remote-User": ME})["jobs"] == []
    with served(day, WebAccess(proxies=frozenset({"127.0.0.1"}))) as server:
        assert asked(server, "/", {"X-Remote-User": "nobody-of-this-name"})[0] == 401


def test_a_viewer_that_has_to_be_known_shows_a_token(day: SimulatedSource) -> None:
    token = "0123456789abcdef"  # noqa: S105 - made up
    access = WebAccess(tokens={token: ME}, must_be_known=True)
    with served(day, access) as server:
        assert asked(server, "/")[0] == 401
        assert asked(server, "/api/events")[0] == 401
        assert asked(server, "/", {"Authorization": "Bearer wrong"})[0] == 401
        assert asked(server, "/", {"Authorization": f"Bearer {token}"})[0] == 200
        assert asked(server, "/", {"Authorization": "MUNGE MUNGE:any:"})[0] == 401
        status, headers, _ = asked(server, f"/?token={token}")
        assert (status, headers["Location"]) == (303, "./")
        assert "HttpOnly" in headers["Set-Cookie"]
        assert asked(server, "/", {"Cookie": headers["Set-Cookie"].partition(";")[0]})[0] == 200
        assert asked(server, f"/?at=100&theme=dark&token={token}")[1]["Location"] == "./?at=100&theme=dark"
        assert asked(server, f"/?at=1%0d%0aSet-Cookie:x&token={token}")[1]["Location"] == "./?at=1%0D%0ASet-Cookie%3Ax"
        assert asked(server, "/?token=a%0d%0aSet-Cookie:x")[0] == 401


def test_a_file_of_tokens_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# who\n0123456789abcdef {ME}\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(file)
    file.chmod(0o600)
    assert read_tokens(file) == {"0123456789abcdef": ME}
    file.write_text("short ada\n")
    with pytest.raises(ConfigError, match="line 1: write TOKEN USER"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--every", "0.1"], "--every is at least 1 s"),
        (["--embed-in", "x; script-src *"], "--embed-in is one origin"),
        (["--from-simulation", "/none/day.json"], "cannot read /none/day.json"),
        (
            ["--bind", "192.0.2.1", "--gateway", f"recorded:{Path(__file__).parents[3]}/data/slurm-26.05"],
            "viewers have to be known",
        ),
    ],
)
def test_wrong_options_are_one_sentence(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    assert main(["web", *options]) != 0
    assert text in capsys.readouterr().err


def test_a_moment_is_kept_for_all_who_see_the_same(day: SimulatedSource) -> None:
    exhibit = Exhibit(day)
    for number in range(module.MOST_KEPT + 20):
        exhibit.moment(None, day.room().began + number)
    assert len(exhibit._kept) <= module.MOST_KEPT
    first = exhibit.moment(1, day.room().began)
    assert exhibit.moment(2, day.room().began) is first
    assert json.loads(first[0])["schema_version"] == 1


def test_moments_that_differ_by_less_than_a_second_are_one(
    day: SimulatedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float | None] = []

    def moment(at: float | None) -> WebMoment:
        made.append(at)
        return SimulatedSource.moment(day, at)

    monkeypatch.setattr(day, "moment", moment)
    began, until = day.room().began, day.room().until
    with served(day) as server:
        for number in range(20):
            told(server, f"/api/moment?at={began + 100 + number / 50}")
            told(server, f"/api/job/8?at={began + 100 + number / 50}")
        assert set(made) == {began + 100}
        made.clear()
        for text in ("-1e300", str(began - 7), "1e300", str(until + 7)):
            told(server, f"/api/moment?at={text}")
        assert made == [began, until]
        for text in ("nan", "inf", "-inf", "1e999"):
            assert asked(server, f"/api/moment?at={text}")[0] == 400


def test_a_live_page_has_one_moment_whatever_is_asked() -> None:
    source = live(StandInSlurm())
    source.read()
    exhibit = Exhibit(source)
    first = exhibit.moment(None, None)
    assert all(exhibit.moment(None, float(at)) is first for at in range(10))


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["another peer", "the same proxy"])
def test_520_connections_of_one_peer_that_send_a_byte_now_and_then_shut_the_page_for_nobody(
    day: SimulatedSource, source: str
) -> None:
    raise_file_limit()
    with served(day) as server, ExitStack() as peers:
        slow = []
        for _ in range(520):
            slow.append(peers.enter_context(connected(server)))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(20):
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"x")
            seen = http.client.HTTPConnection("127.0.0.1", server.server_address[1], 20, (source, 0))
            seen.request("GET", "/api/room")
            assert seen.getresponse().status == 200
            seen.close()


def test_a_request_that_trickles_in_is_cut_at_its_deadline_and_a_viewers_stream_is_not(
    day: SimulatedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.WebServer, "lives_for", 0.5)
    with served(day, patience=0.1) as server, connected(server) as slow:
        viewer = first_lines(server.server_address[1])
        slow.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(OSError):
            for _ in range(400):
                slow.sendall(b"X: x\r\n")
                time.sleep(0.02)
                if select.select([slow], [], [], 0)[0]:  # hung up
                    break
        assert slow.recv(1) == b""
        for _ in range(10):
            until(viewer, b"still here")
        viewer.close()


@pytest.mark.parametrize("greedy", [3, 30])
def test_the_peer_with_most_connections_makes_room(
    day: SimulatedSource, monkeypatch: pytest.MonkeyPatch, greedy: int
) -> None:
    monkeypatch.setattr(module.WebServer, "most_connections", 4)
    with served(day) as server, ExitStack() as peers:
        honest = [peers.enter_context(connected(server, f"127.0.0.{number}")) for number in (2, 3)]
        for _ in range(greedy):
            peers.enter_context(connected(server))
        for one in honest:
            one.sendall(b"GET /api/room HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(15).startswith(b"HTTP/1.1 200")


def connected(server: module.WebServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), 20, (source, 0))
