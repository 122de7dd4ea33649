"""Asks berthd: over its own socket, which is for Slurm's user and root, or at its port for users."""

import socket
import time
from typing import TYPE_CHECKING

from policy.formats import wire
from policy.formats.errors import BerthError, DaemonError, FormatError
from policy.site.ask import status

if TYPE_CHECKING:
    from policy.site.config import Config

__all__ = ["question", "status"]

_SECONDS = 3.0
"""Seconds for one host, from connecting to the whole reply."""


def question(config: "Config", text: str) -> dict[str, str]:
    """Returns the reply of the first of berthd's hosts that answers; a `DaemonError` where none does."""
    from policy.site.munge import Munge  # noqa: PLC0415 - only who asks over the network needs it

    munge = Munge(config.munge_socket)
    problems: list[str] = []
    for host in config.users_hosts:
        try:
            # Each host gets a credential of its own, because none is accepted twice.
            reply = _talk(host, config.users_port, munge.encode(f"{wire.VERSION} {text}".encode("ascii")))
            message = wire.decode(reply)
        except TimeoutError:
            problems.append(f"{host} did not answer within {_SECONDS:g} s")
        except OSError as problem:
            problems.append(f"{host}: {problem.strerror or problem}")
        except FormatError as problem:
            problems.append(f"{host} sent {problem}")
        else:
            if message.verb == "refuse":
                raise BerthError(message.fields.get("message", "berthd gives no answer, and no reason"))
            return message.fields
    raise DaemonError(f"berthd does not answer on port {config.users_port} ({', '.join(problems)})")


def _talk(host: str, port: int, credential: bytes) -> bytes:
    """Returns the reply of one host; an OSError where there is none."""
    due = time.monotonic() + _SECONDS
    reply = bytearray()
    with socket.create_connection((host, port), timeout=_SECONDS) as connection:
        connection.sendall(credential + b"\n")
        while len(reply) <= wire.REPLY_BYTES:
            left = due - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(wire.REPLY_BYTES)
            if not part:
                break
            reply += part
    if not reply:
        raise ConnectionError("it hung up, its log says why")
    return bytes(reply)
