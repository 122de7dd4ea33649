# SPDX-License-Identifier: Apache-2.0
"""The pages of the metrics: slurmctld's paths and rules, nobody who keeps others from reading, no job in a label."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from policy.formats.errors import ConfigError, DaemonError
from policy.serve.metrics.access import Access
from policy.serve.metrics.endpoints import HttpReply, MetricsServer, MetricsSite
from policy.serve.metrics.families import PAGES, TABLE, Sources
from policy.serve.metrics.hook_calls import HookCalls
from policy.site.config import MetricsOptions, load
from policy.site.metrics_state import ClusterState
from policy.site.privacy import SlurmRules

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
OPEN: Mapping[str, str] = {"PrivateData": "none", "SlurmctldHost[0]": "ctl1(10.0.0.1)"}
STATUS = {"version": "0.1.0", "slurm": "26.05", "gateway": "libslurm", "snapshot_age_ms": "900", "placed": "7"}
STATE = ClusterState(
    at=1_000.0,
    in_control=True,
    names=("n1", "n2"),
    models=["h100", ""],
    gpus={"free": [3, 0], "whole": [4, 0], "shared": [1, 0], "drained": [0, 0], "unplaced": [0, 8]},
    not_ready=1,
    slow=[("n1", 3, "compute", 1.25)],
    slow_counts=[("h100", "compute", 1)],
    closed=[("n1", 0)],
    idle=[("n1", "0", 900.0)],
    islands=[("h100", 3, 1)],
    waiting={"capacity": 2, "new": 1},
    running={"whole": 1, "packed": 0, "guest": 0},
    holds=[("GPU-a", 4711)],
    counts={"updates": 5, "pins_again": 2, "moves": 1},
    failed={"gpu_ecc_error": 1},
)


def site(
    sources: Sources | None = None, config: Mapping[str, str] = OPEN, token_file: Path | None = None
) -> MetricsSite:
    made = sources or Sources(STATE, STATUS, HookCalls(Path("/nowhere/hook.log")))
    return MetricsSite(Access(SlurmRules(lambda: config, 0), token_file), lambda: made, 6828)


def get(path: str, one: MetricsSite | None = None, **headers: str) -> HttpReply:
    return (one or site()).get(path, headers)


def test_the_paths_are_those_of_slurmctld() -> None:
    assert get("/").status is get("/metrics").status is HTTPStatus.OK
    for path in ("/livez", "/healthz", "/readyz"):
        assert (get(path).status, get(path).body) == (HTTPStatus.NO_CONTENT, b"")
    for name in PAGES:
        assert f"'/metrics/{name}'" in get("/metrics").body.decode()
        assert get(f"/metrics/{name}").status is HTTPStatus.OK
    for path in ("/metrics/", "/metrics/none", "/metric", "/conf", "", "//", "/livez/x"):
        assert get(path).status is HTTPStatus.NOT_FOUND, path


def test_every_metric_of_the_table_is_served_in_both_formats() -> None:
    for accept, read in ((OPENMETRICS, openmetrics), ("", plain)):
        found = {}
        for page in PAGES:
            reply = get(f"/metrics/{page}", Accept=accept)
            assert ("openmetrics" in reply.headers["Content-Type"]) is bool(accept)
            for family in read(reply.body.decode()):
                for sample in family.samples:
                    found[sample.name, str(page)] = sample
        for spec in TABLE:
            name = f"{spec.name}_count" if spec.kind == "histogram" else spec.name
            assert set(found[name, spec.page].labels) == set(spec.labels), spec.name
        assert {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name, _ in found} == {
            spec.name for spec in TABLE
        }


def samples() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The values of all pages, by name and labels."""
    families = [family for name in PAGES for family in plain(get(f"/metrics/{name}").body.decode())]
    return {
        (one.name, frozenset(one.labels.items())): float(one.value) for family in families for one in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("berth_gpus", {"model": "h100", "state": "whole"}, 4.0),
        ("berth_gpus", {"model": "h100", "state": "drained"}, 0.0),
        ("berth_gpus", {"model": "", "state": "unplaced"}, 8.0),
        ("berth_node_gpus", {"model": "", "node": "n2", "state": "unplaced"}, 8.0),
        ("berth_node_gpus", {"model": "", "node": "n2", "state": "free"}, None),
        ("berth_gpu_slowdown_ratio", {"node": "n1", "gpu": "3", "app_class": "compute"}, 0.25),
        ("berth_largest_free_island_gpus", {"model": "h100"}, 3.0),
        ("berth_jobs_waiting", {"reason": "capacity"}, 2.0),
        ("berth_answers_total", {"answer": "place"}, 7.0),
        ("berth_pins_total", {"kind": "again"}, 2.0),
        ("berth_relocations_total", {}, 1.0),
        ("berth_evictions_total", {}, 0.0),
        ("berth_reading_age_seconds", {}, 0.9),
        ("berth_slurm_readable", {}, 1.0),
    ],
)
def test_values_are_those_of_the_sources(name: str, labels: dict[str, str], value: float | None) -> None:
    assert samples().get((name, frozenset(labels.items()))) == value


def test_no_series_but_one_knows_a_job_and_names_have_units() -> None:
    assert [spec.name for spec in TABLE if {"jobid", "job", "user", "uid", "account", "name"} & set(spec.labels)] == [
        "berth_gpu_job_info"
    ]
    for spec in TABLE:
        assert spec.name.startswith("berth_")
        assert spec.name.endswith("_total") is (spec.kind == "counter")
        assert spec.name.endswith("_info") is (spec.kind == "info")
        if spec.kind == "histogram":
            assert spec.name.endswith("_seconds")
    assert len({spec.name for spec in TABLE}) == len(TABLE)
    assert [name for name, labels in samples() if "4711" in dict(labels).values()] == ["berth_gpu_job_info"]


def test_what_is_not_known_is_left_out() -> None:
    mute = site(Sources(None, {}))

    for path in ("/livez", "/healthz", "/readyz"):
        assert get(path, mute).status is HTTPStatus.INTERNAL_SERVER_ERROR
    text = get("/metrics/scheduler", mute).body.decode()
    assert "berth_answering 0.0" in text
    assert text.count("# TYPE") == 1
    assert get("/metrics/nodes", mute).body == b""


def test_berthd_is_ready_with_a_fresh_reading_and_in_control(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    old = Sources(STATE, {**STATUS, "snapshot_age_ms": "30001"})

    assert get("/readyz", site(old)).status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert get("/livez", site(old)).status is HTTPStatus.NO_CONTENT
    assert get("/readyz?verbose").status is HTTPStatus.UNAUTHORIZED, "nobody holds the token of a site without one"
    told = get("/readyz?verbose", site(old, token_file=token), Authorization="Bearer secret")
    assert (told.status, told.body) == (500, b"answering:T\nprimary:T\nreading:F\n")
    told = get("/readyz?verbose", site(token_file=token), Authorization="Bearer secret")
    assert (told.status, told.body) == (200, b"answering:T\nprimary:T\nreading:T\n")


@pytest.mark.parametrize(
    ("host", "location"),
    [
        ("ctl1(10.0.0.1)", "http://10.0.0.1:6828/metrics/nodes?a=b"),
        ("ctl1", "http://ctl1:6828/metrics/nodes?a=b"),
        ("ctl1(fd00::1)", "http://[fd00::1]:6828/metrics/nodes?a=b"),
        ("", None),
    ],
)
def test_a_standby_sends_readers_to_the_first_controller(host: str, location: str | None, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    sources = Sources(ClusterState(at=1.0, in_control=False), STATUS)
    standby = site(sources, {"SlurmctldHost[0]": host}, tmp_path / "token")

    reply = get("/metrics/nodes?a=b", standby)
    if location is None:
        assert (reply.status, b"controller address unavailable" in reply.body) == (503, True)
    else:
        assert (reply.status, reply.headers["Location"], reply.body) == (303, location, b"")
    assert get("/livez", standby).status is HTTPStatus.NO_CONTENT
    assert get("/readyz", standby).status is HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("config", "served"),
    [
        ({"PrivateData": "none"}, True),
        ({"PrivateData": "(null)"}, True),
        ({"PrivateData": "jobs,usage"}, False),
        ({"PrivateData": "jobs", "MetricsParameters": "ignore_private_data"}, True),
        ({"PrivateData": "jobs", "MetricsParameters": "(null)"}, False),
        ({}, False),
    ],
)
def test_without_a_token_private_data_decide(config: Mapping[str, str], served: bool) -> None:
    for path in ("/metrics", "/metrics/nodes"):
        reply = get(path, site(config=config))
        assert reply.status is (HTTPStatus.OK if served else HTTPStatus.UNAUTHORIZED)
        assert served or b"[metrics] token_file" in reply.body
    assert get("/livez", site(config=config)).status is HTTPStatus.NO_CONTENT


@pytest.mark.parametrize(
    ("header", "served"),
    [
        ("Bearer secret", True),
        ("bearer secret ", True),
        ("Bearer secre", False),
        ("Bearer secret2", False),
        ("Basic secret", False),
        ("Bearer", False),
        ("Bearer \xff", False),
        ("", False),
    ],
)
def test_a_token_is_wanted_where_the_site_has_one(tmp_path: Path, header: str, served: bool) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")

    reply = get("/metrics/jobs", site(config={"PrivateData": "jobs"}, token_file=token), Authorization=header)

    assert reply.status is (HTTPStatus.OK if served else HTTPStatus.UNAUTHORIZED)
    assert served or reply.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_no_token_or_an_empty_one_opens_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)

    for header in ("Bearer ", "", "Bearer x"):
        reply = get("/metrics", site(token_file=tmp_path / "token"), Authorization=header)
        assert reply.status is HTTPStatus.UNAUTHORIZED


def test_a_fault_or_an_odd_header_costs_one_reply(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Sources:
        raise ZeroDivisionError("odd")

    one = MetricsSite(Access(SlurmRules(lambda: OPEN, 0), None), broken, 1)
    assert one.get("/metrics/nodes", {}).status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert "ZeroDivisionError('odd')" in capsys.readouterr().err
    for accept in ("application/openmetrics-text; version=x.y", "application/openmetrics-text;version", ";;,,", "\x00"):
        assert get("/metrics/nodes", Accept=accept).status in {HTTPStatus.OK, HTTPStatus.NOT_ACCEPTABLE}


# Over sockets.


@contextmanager
def serving(turn: float = 0.05) -> Iterator[int]:
    server = MetricsServer(site(), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, args=(turn,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
        assert not thread.is_alive()


def fetch(port: int, path: str = "/metrics/nodes", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_page_comes_over_the_wire_and_only_get_is_known() -> None:
    with serving() as port:
        status, body = fetch(port)
        assert (status, b"berth_node_gpus" in body) == (200, True)
        assert fetch(port, "/livez") == (204, b"")
        assert fetch(port, "/none")[0] == 404
        for method in ("POST", "HEAD", "DELETE"):
            assert fetch(port, method=method)[0] == 501


def test_silent_readers_do_not_keep_others_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsServer, "lives_for", 0.5)
    monkeypatch.setattr(MetricsServer, "most_connections", 4)
    with serving() as port, ExitStack() as peers:
        silent = [peers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(4)]
        for peer in silent:
            peer.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        began = time.monotonic()
        while True:
            try:
                if fetch(port)[0] == 200:
                    break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() - began < 10.0
                time.sleep(0.05)


def test_rubbish_and_hang_ups_cost_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as port:
        for data in (b"", b"\x16\x03\x01\x02\x00", b"GET " + b"A" * 100_000, b"\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
                peer.sendall(data)
        assert fetch(port)[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_that_is_taken_is_named() -> None:
    with serving() as port, pytest.raises(DaemonError, match=f"127.0.0.1 port {port}: Address already in use"):
        MetricsServer(site(), "127.0.0.1", port)


# The table of berth.conf.


def loaded(tmp_path: Path, text: str) -> MetricsOptions:
    path = tmp_path / "berth.conf"
    path.write_text(text)
    return load(path).metrics


def test_metrics_are_off_and_then_on_the_loopback_address(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == MetricsOptions(enabled=False, address="127.0.0.1", port=6828)
    text = '[metrics]\nenabled = true\naddress = "::"\nport = 7000\ntoken_file = "/etc/x"\njob_info = true\n'
    assert loaded(tmp_path, text) == MetricsOptions(True, "::", 7000, Path("/etc/x"), True)


@pytest.mark.parametrize(
    "line", ["enabled = 1", 'address = "ctl1"', "port = 0", 'token_file = "x"', 'job_info = "yes"', "on = true"]
)
def test_a_wrong_key_of_the_table_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"\[metrics\]"):
        loaded(tmp_path, f"[metrics]\n{line}\n")
