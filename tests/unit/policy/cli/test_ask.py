# SPDX-License-Identifier: Apache-2.0
"""Questions to berthd from a host where only its port for users can be reached."""

import functools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policy.cli import ask
from policy.formats.errors import BerthError, DaemonError, SlurmError
from policy.site.auth import credentials
from policy.site.auth.munge import Munge
from policy.site.config import Config
from tests.fakes import munge

OVERVIEW = {"schema_version": 1, "nodes": [{"name": "n1"}]}


@pytest.fixture(autouse=True)
def _munge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "Munge", functools.partial(Munge, library=str(munge.library())))


@contextmanager
def answering(reply: bytes) -> Iterator[tuple[Config, list[bytes]]]:
    """A host whose port says just this to whoever asks, behind one where nobody listens; and what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65_536))
            connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield configured("127.0.0.2", "127.0.0.1", port=listener.getsockname()[1]), asked
        thread.join(10)


def configured(*hosts: str, port: int) -> Config:
    return Config(users_hosts=hosts, users_port=port)


@pytest.mark.parametrize("question", ["fleet", "queue"])
def test_an_overview_is_that_of_the_first_host_that_answers(question: str) -> None:
    reply = f"berth/1 {question}\n{json.dumps(OVERVIEW)}".encode()
    with answering(reply) as (config, asked):
        assert getattr(ask, question)(config) == OVERVIEW

    payload = bytes.fromhex(asked[0].decode().strip().removeprefix("MUNGE:").removesuffix(":"))
    assert payload.endswith(f"berth/1 {question}".encode())


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"berth/1 why\nreason=none\n", "a reply to another question"),
        (b'berth/1 fleet\n{"schema_version": 1, "nod', "a reply that ends too early"),
        (b'berth/1 fleet\n{"schema_version": 99}', "a reply of another release"),
        (b"", "it hung up, its log says why"),
    ],
)
def test_where_no_host_answers_the_error_tells_of_each(reply: bytes, why: str) -> None:
    with answering(reply) as (config, _), pytest.raises(DaemonError, match="berthd does not answer on port") as told:
        ask.fleet(config)

    assert "127.0.0.2: Connection refused, 127.0.0.1" in str(told.value)
    assert why in str(told.value)


def test_a_site_that_names_no_hosts_is_asked_on_slurms_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = f"berth/1 fleet\n{json.dumps(OVERVIEW)}".encode()
    told = {"SlurmctldHost[0]": "ctl1(127.0.0.2)", "SlurmctldHost[1]": "ctl2(127.0.0.1)", "ClusterName": "one"}
    with answering(reply) as (config, _):
        monkeypatch.setattr("policy.cli.ask.CommandGateway.config", lambda _: told)

        assert ask.fleet(Config(users_port=config.users_port)) == OVERVIEW


def test_without_slurms_word_this_host_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> None:
        raise SlurmError("slurmctld does not answer")

    monkeypatch.setattr("policy.cli.ask.CommandGateway.config", away)
    config = Config(socket=tmp_path / "berthd.sock", users_port=1)

    with pytest.raises(DaemonError, match=r"port 1 \(localhost: Connection refused\)"):
        ask.queue(config)


def test_what_berthd_refuses_is_told_in_its_words() -> None:
    with answering(b"berth/1 refuse\nmessage=you%20may%20not\n") as (config, _), pytest.raises(BerthError) as told:
        ask.fleet(config)

    assert str(told.value) == "you may not"
