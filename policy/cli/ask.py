# SPDX-License-Identifier: Apache-2.0
"""Asks berthd: over its own socket, which is for Slurm's user and root, or at its port for users."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from policy.formats import wire
from policy.formats.errors import BerthError, DaemonError, FormatError, SlurmError
from policy.site.ask import status
from policy.site.config import Config
from policy.site.overview import MOST_BYTES, SCHEMA_VERSION, OverviewFile, fleet_for, path_of, queue_for
from policy.slurm.by_command.command import CommandGateway

__all__ = ["fleet", "question", "queue", "status"]

T = TypeVar("T")

_SECONDS = 3.0
"""Seconds for one host, from connecting to the whole reply."""


def question(config: Config, text: str) -> dict[str, str]:
    """Returns the reply of the first of berthd's hosts that answers; raises DaemonError if none does."""
    return _ask(config, text, wire.REPLY_BYTES, lambda reply: _fields(wire.decode(reply)))


def fleet(config: Config) -> dict[str, Any]:
    """Returns the reply to `fleet` (docs/develop/formats.md, 11.3): the GPUs of all nodes."""
    return _json(config, "fleet") if config.users_hosts else fleet_for(OverviewFile(path_of(config.socket)).read())


def queue(config: Config) -> dict[str, Any]:
    """Returns the reply to `queue` (docs/develop/formats.md, 11.3): the jobs with GPUs, the waiting ones first."""
    return _json(config, "queue") if config.users_hosts else queue_for(OverviewFile(path_of(config.socket)).read())


def _json(config: Config, text: str) -> dict[str, Any]:
    def read(reply: bytes) -> dict[str, Any]:
        first, _, rest = reply.partition(b"\n")
        if first != f"{wire.VERSION} {text}".encode("ascii"):
            _fields(wire.decode(reply))
            raise FormatError("a reply to another question; install all of Berth from one release")
        try:
            found: dict[str, Any] = json.loads(rest)
        except ValueError:
            raise FormatError("a reply that ends too early") from None
        if found.get("schema_version") != SCHEMA_VERSION:
            raise FormatError("a reply of another release; install all of Berth from one")
        return found

    return _ask(config, text, MOST_BYTES, read)


def _fields(message: wire.Message) -> dict[str, str]:
    if message.verb == "refuse":
        raise BerthError(message.fields.get("message", "berthd gives no answer, and no reason"))
    return message.fields


def _ask(config: Config, text: str, most: int, read: Callable[[bytes], T]) -> T:
    from policy.site.auth.credentials import Credentials  # noqa: PLC0415 - only a question over the network needs it

    payload = f"{wire.VERSION} {text}".encode("ascii")
    credentials = Credentials(config.munge_socket)
    problems: list[str] = []
    for host in _hosts(config):
        name, _, address = host.rstrip(")").partition("(")
        try:
            if (near := _near(name, config.users_socket)) is not None:
                return read(_talk(near, payload, most))
            # Each host gets a credential of its own, because none is accepted twice.
            credential, there = credentials.encode(payload), (address or name, config.users_port)
            return read(_talk(socket.create_connection(there, _SECONDS), credential, most))
        except TimeoutError:
            problems.append(f"{host} did not answer within {_SECONDS:g} s")
        except OSError as problem:
            problems.append(f"{host}: {problem.strerror or problem}")
        except FormatError as problem:
            problems.append(f"{host} sent {problem}")
    raise DaemonError(f"berthd does not answer on port {config.users_port} ({', '.join(problems)})")


def _hosts(config: Config) -> tuple[str, ...]:
    """Returns berthd's hosts; only this one if Slurm does not name its controllers."""
    if config.users_hosts != Config().users_hosts:
        return config.users_hosts
    try:
        found = CommandGateway().config()
    except SlurmError:
        return ("localhost",)
    return tuple(host for key, host in sorted(found.items()) if key.startswith("SlurmctldHost["))


def _near(host: str, path: Path) -> socket.socket | None:
    """Returns a connection on which berthd knows the user without a credential; None if berthd is on another host."""
    if host.partition(".")[0] not in {"localhost", socket.gethostname().partition(".")[0]}:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _talk(connection: socket.socket, line: bytes, most: int) -> bytes:
    """Returns the reply to one line; raises OSError if there is none."""
    due = time.monotonic() + _SECONDS
    reply = bytearray()
    with connection:
        connection.sendall(line + b"\n")
        while len(reply) <= most:
            left = due - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(65_536)
            if not part:
                break
            reply += part
    if not reply:
        raise ConnectionError("it hung up, its log says why")
    return bytes(reply)
