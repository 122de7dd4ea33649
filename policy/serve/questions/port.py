# SPDX-License-Identifier: Apache-2.0
"""The sockets for users' commands: one question and one reply per connection.

On this host's own socket the kernel names the user; on the TCP port a credential does. One thread serves the sockets;
another one checks credentials and asks Slurm, one question after the other.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from policy.serve.questions.answers import refusal
from policy.site import log
from policy.site.auth.credentials import FORM, MOST_BYTES
from policy.site.auth.munge import EXPIRED, NO_MUNGED, REPLAYED, REWOUND, Credential

MOST_SILENT = 256
"""The most connections without a question; at that bound the oldest is closed for a new one."""
MOST_WAITING = 256
"""The most questions that wait for their turn."""
PATIENCE = 2.0
"""Seconds within which a question must come, and again for its reply to be taken."""
TOO_LATE = 3.0
"""Seconds after which the client has given up."""

_BACKLOG = 1_024
_SAY_EVERY = 60.0

_REFUSED = {NO_MUNGED: "no credential is checked on this host", REPLAYED: "it came a second time"}

Answer = Callable[[int, bytes], bytes | None]
Decode = Callable[[bytes], Credential]


class QuestionPort:
    """Takes questions until it is stopped; hostile peers cost some connections and munged's time."""

    def __init__(self, answer: Answer, decode: Decode, patience: float = PATIENCE) -> None:
        self._answer = answer
        self._decode = decode
        self._patience = patience
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections without a question, the oldest first."""
        self._waiting = 0
        self._worker = ThreadPoolExecutor(1, "berth-questions")
        self._said: dict[str, float] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Answers on a socket until it is cancelled."""
        start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
        server = await start(self._meet, sock=listener, limit=MOST_BYTES, backlog=_BACKLOG)
        await server.serve_forever()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await self._line(reader, writer)
            reply = await self._reply(line, _peer(writer)) if line is not None else None
            if reply is not None:
                writer.write(reply)
                async with asyncio.timeout(self._patience):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, OSError):
            pass  # the client did not take the reply
        finally:
            writer.transport.abort()

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Returns the one line that a client sends; None if it is too long, or does not come in time."""
        while len(self._silent) >= MOST_SILENT:
            eldest = next(iter(self._silent))
            del self._silent[eldest]
            eldest.transport.abort()
        self._silent[writer] = None
        try:
            async with asyncio.timeout(self._patience):
                line = await reader.readuntil(b"\n")
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return None
        finally:
            self._silent.pop(writer, None)
        return line[:-1] if len(line) <= MOST_BYTES else None

    async def _reply(self, line: bytes, peer: int | None) -> bytes | None:
        if peer is None and not FORM.fullmatch(line):
            return None
        if self._waiting >= MOST_WAITING:
            return refusal("berthd has too many questions to answer; ask again in a moment")
        self._waiting += 1
        try:
            came = time.monotonic()
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._look_up, line, peer, came)
        finally:
            self._waiting -= 1

    def _look_up(self, line: bytes, peer: int | None, came: float) -> bytes | None:
        """Answers a line, in the other thread."""
        if time.monotonic() - came > TOO_LATE:
            return None
        try:
            if peer is not None:
                return self._answer(peer, line)
            credential = self._decode(line)
            if credential.error in {EXPIRED, REWOUND}:
                apart = f"the clocks of your host and of berthd's differ by {abs(credential.skew)} s"
                return refusal(f"{apart}; tell an admin")
            if credential.error:
                self._say_why(credential)
                return None
            return self._answer(credential.uid, credential.payload)
        except Exception as fault:  # noqa: BLE001 - one question must not end the answers to all
            self._say(f"a fault of berthd's own, a question stays without an answer: {fault!r}")
            return refusal("berthd met a fault of its own, its log says which")

    def _say_why(self, credential: Credential) -> None:
        why = _REFUSED.get(credential.error, "the hosts of users need the key of this one")
        self._say(f"a user's question was refused: {credential.reason}; {why}")

    def _say(self, text: str) -> None:
        """Logs a text at most once a minute."""
        now = time.monotonic()
        if now >= self._said.get(text, 0.0):
            self._said = {said: until for said, until in self._said.items() if until > now}
            self._said[text] = now + _SAY_EVERY
            log.error(text, 627)


def _peer(writer: asyncio.StreamWriter) -> int | None:
    """Returns the user at the other end of this host's own socket; None for the network."""
    connection = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:
        return None
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
