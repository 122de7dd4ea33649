"""The read-only process: listeners that cost each other nothing."""

import signal
import socket
from pathlib import Path

import pytest

from policy.formats import wire
from tests.unit.policy.serve.serve_world import served
from tests.waiting import until


def test_one_process_serves_metrics_and_questions(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        told = wire.decode(made.ask() or b"")
        assert until("a scrape", made.scrape) == 200

    assert told.verb == "refuse"
    assert "is berthd running?" in told.fields["message"]


def test_a_port_that_is_taken_costs_its_listener_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(tmp_path, port) as made:
            said = ""

            def told() -> str:
                nonlocal said
                said += capfd.readouterr().err
                return said if "cannot listen on" in said else ""

            assert f"127.0.0.1 port {port}: Address already in use" in until("the log to say so", told)
            assert made.ask()


def test_it_ends_at_once_where_it_is_told_to(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(20) == 0
