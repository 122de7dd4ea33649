"""The guard's notice to berthd (docs/formats.md): what state a GPU is in, and what has to become of its guest.

The same port and credential as the Epilog's notice. The guard needs no berthd: where nobody answers, it goes on alone.
"""

from __future__ import annotations

import ctypes
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.tell.figures import Told

__all__ = ["Notice", "Payload", "credential", "tell"]

SECONDS = 0.3
"""For one notice, from its beginning to its end."""

_KEEP_S = 600.0
_DONE = b"berth/1 done\n"
_SOCKET = 8  # MUNGE_OPT_SOCKET
_MOST_ANSWER = 64


class Payload(Protocol):
    """What a notice says."""

    @property
    def text(self) -> str:
        """As berthd reads it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice."""

    node: str
    gpu: int
    """Position."""
    state: str
    """The state machine's, in lower case."""
    word: str = "state"
    """`state`, `leave`, `evict`, `fault`."""
    job: int = 0
    """The guest; 0: there is none, or it does not matter."""
    grace: int | None = None
    """Seconds that a guest that has to leave gets."""
    figures: Told = ()
    """What was measured of the jobs here."""

    @property
    def text(self) -> str:
        """The credential's payload."""
        grace = "" if self.grace is None else f" grace={self.grace}"
        figures = "".join(f" {key}={value:.4f}".rstrip("0").rstrip(".") for key, value in self.figures)
        who = f"node={self.node} gpu={self.gpu} job={self.job}"
        return f"berth/1 guard {who} state={self.state} word={self.word}{grace}{figures}"


@cache
def _munge() -> Any:
    library = ctypes.CDLL("libmunge.so.2")
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.munge_strerror.restype = ctypes.c_char_p
    return library


def credential(payload: bytes, munge_socket: str = "") -> bytes:
    """Have munged of this node sign a text."""
    try:
        library = _munge()
    except OSError as problem:
        raise NodeError(f"libmunge cannot be loaded ({problem}); install libmunge2 or munge-libs") from None
    made = ctypes.c_void_p()
    error = library.munge_encode(ctypes.byref(made), _context(munge_socket), payload, len(payload))
    if error:
        said = library.munge_strerror(error).decode(errors="replace")
        raise NodeError(f"munge signs nothing ({said}); is munged up on this node?")
    try:
        return ctypes.string_at(made.value or 0)
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(made)


@cache
def _context(munge_socket: str) -> ctypes.c_void_p | None:
    """Kept as long as the guard lives; none for munge's own socket."""
    if not munge_socket:
        return None
    context = ctypes.c_void_p(_munge().munge_ctx_create())
    _munge().munge_ctx_set(context, _SOCKET, ctypes.c_char_p(munge_socket.encode()))
    return context


def tell(
    options: NoticeOptions,
    notice: Payload,
    sign: Callable[[bytes, str], bytes] = credential,
    seconds: float = SECONDS,
) -> bool:
    """Tell all hosts at the same time; whether the berthd in charge has taken it."""
    if not options.hosts:
        return False
    line = sign(notice.text.encode(), options.munge_socket) + b"\n"
    until = time.monotonic() + seconds
    open_now: list[socket.socket] = []
    try:
        for host in options.hosts:
            with suppress(OSError):
                open_now.append(_connect(host, options.port))
        return _ask(open_now, line, until)
    finally:
        for one in open_now:
            one.close()


_Address = tuple[int, int, int, str, Any]
_addresses: dict[tuple[str, int], tuple[float, _Address]] = {}
"""Where berthd's hosts are, and until when that is not asked again."""


def _address(host: str, port: int) -> _Address:
    """A name service that hangs has no deadline: it is asked seldom, and its last answer holds while it gives none."""
    until, known = _addresses.get((host, port), (0.0, None))
    if known is None or time.monotonic() >= until:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError:
            if known is None:
                raise
        _addresses[host, port] = (time.monotonic() + _KEEP_S, known)
    return known


def _connect(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = _address(host, port)
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)  # noqa: FBT003 - its only argument
    made.connect_ex(address)
    return made


def _ask(connections: Sequence[socket.socket], line: bytes, until: float) -> bool:
    said: dict[socket.socket, bytes] = dict.fromkeys(connections, b"")
    told: set[socket.socket] = set()
    while said and (left := until - time.monotonic()) > 0.0:
        waiting = [one for one in said if one not in told]
        readable, writable, _ = select.select(list(told & said.keys()), waiting, [], left)
        for one in writable:
            try:
                one.sendall(line)
                told.add(one)
            except OSError:
                del said[one]
        for one in readable:
            try:
                more = one.recv(_MOST_ANSWER)
            except OSError:
                more = b""
            said[one] += more
            if said[one] == _DONE:
                return True
            if not more or b"\n" in said[one] or len(said[one]) > _MOST_ANSWER:
                del said[one]
    return False
