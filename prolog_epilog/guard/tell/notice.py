# SPDX-License-Identifier: Apache-2.0
"""The guard's notice to berthd (docs/develop/formats.md): the state of a GPU, and what has to become of its guest.

It uses the same port and credential as the Epilog's notice. The guard does not need berthd: without an answer it goes
on alone.
"""

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
from prolog_epilog.guard.tell import sack
from prolog_epilog.guard.tell.figures import Told

SECONDS = 0.3
"""Time limit in seconds for one notice, from its beginning to its end."""

_KEEP_S = 600.0
_DONE = b"berth/1 done\n"
_SOCKET = 8  # MUNGE_OPT_SOCKET
_MOST_ANSWER = 64


class Payload(Protocol):
    """The payload of a notice."""

    @property
    def text(self) -> str:
        """Returns the text that berthd reads."""


@dataclass(frozen=True, slots=True)
class GuardNotice:
    """One notice on a GPU."""

    node: str
    gpu: int
    """The position of the GPU."""
    state: str
    """The state of the state machine, in lower case."""
    word: str = "state"
    """The kind of notice: `state`, `leave`, `evict`, `fault`."""
    job: int = 0
    """The guest's job number; 0: there is none, or it does not matter."""
    grace: int | None = None
    """The seconds that a guest that has to leave gets."""
    figures: Told = ()
    """The measurements of the jobs here."""

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        grace = "" if self.grace is None else f" grace={self.grace}"
        # Jobs may write any step times, and berthd reads ten digits.
        told = ((key, min(value, 9_999_999_999.0)) for key, value in self.figures)
        figures = "".join(f" {key}={value:.4f}".rstrip("0").rstrip(".") for key, value in told)
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
    """Has Slurm sign a text where it has credentials of its own, else munged of this node."""
    if where := sack.path():
        return _of_slurm(payload, where)
    try:
        library = _munge()
    except OSError as problem:
        raise NodeError(f"libmunge cannot be loaded ({problem}); install libmunge2 or munge-libs") from None
    made = ctypes.c_void_p()
    error = library.munge_encode(ctypes.byref(made), _context(munge_socket), payload, len(payload))
    if error:
        said = library.munge_strerror(error).decode(errors="replace")
        raise NodeError(f"munge signs nothing ({said}); is munged up on this node, or with auth/slurm slurmd?")
    try:
        return ctypes.string_at(made.value or 0)
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(made)


def _of_slurm(payload: bytes, where: str) -> bytes:
    problem = "its log says why"
    try:
        if made := sack.credential(payload, where, SECONDS):
            return made
    except OSError as found:
        problem = found.strerror or str(found)
    raise NodeError(f"Slurm signs nothing at {where} ({problem}); is slurmd up on this node?")


@cache
def _context(munge_socket: str) -> ctypes.c_void_p | None:
    """Returns the munge context, which is kept as long as the guard lives; None for munge's own socket."""
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
    """Tells all of berthd's hosts at the same time; returns whether the berthd in charge has taken it."""
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
"""The addresses of berthd's hosts, and the time until which the name service is not asked again."""


def _address(host: str, port: int) -> _Address:
    """Returns an address. A name service that hangs has no deadline, so it is asked rarely.

    Its last answer holds while it gives none.
    """
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
