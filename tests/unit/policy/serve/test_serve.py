# SPDX-License-Identifier: Apache-2.0
"""The read-only process: listeners that cost each other nothing."""

import resource
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from policy.formats import wire
from tests.unit.policy.daemon.test_notices import raise_file_limit
from tests.unit.policy.serve.serve_world import served
from tests.waiting import until


def log_says(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def found() -> bool:
        said.append(capfd.readouterr().err)
        return text in "".join(said)

    until(f"the log to say: {text}", found)


def test_one_process_serves_metrics_questions_and_the_page(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        told = wire.decode(made.ask() or b"")
        assert until("a scrape", made.scrape) == 200
        assert until("the page", made.look) == 200

    assert told.verb == "refuse"
    assert "is berthd running?" in told.fields["message"]


def test_520_slow_connections_to_the_page_leave_a_scrape_and_a_question_answered(tmp_path: Path) -> None:
    raise_file_limit()
    with served(tmp_path) as made, ExitStack() as peers:
        assert until("the page", made.look) == 200
        assert until("a scrape", made.scrape) == 200
        [most, _] = resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE)
        assert most > 1_100, "all bounds together"
        slow = []
        for _ in range(520):
            slow.append(peers.enter_context(socket.create_connection(("127.0.0.1", made.page), 20)))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(20):
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"x")
            assert made.scrape() == 200
            assert made.ask()


def test_options_of_the_page_that_are_none_are_named_and_cost_the_page_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path, web="--from-simulation day.json") as made:
        log_says("[web] options of berth.conf: unrecognized arguments: --from-simulation day.json", capfd)
        assert until("a scrape", made.scrape) == 200
        assert made.ask()
        assert made.look() is None


def test_a_port_that_is_taken_costs_its_listener_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(tmp_path, port) as made:
            log_says(f"127.0.0.1 port {port}: Address already in use", capfd)
            assert made.ask()


def test_it_ends_at_once_where_it_is_told_to(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(20) == 0
