# SPDX-License-Identifier: Apache-2.0
"""Hands snapshots from the planner to the answerer.

Each snapshot is written to an anonymous file whose descriptor is passed over a socket: the answerer sees a whole
snapshot or none, however slowly the planner writes. The fleet and what is known of packed jobs seldom change, and are
sent only if they are new. A long queue has tens of thousands of jobs, so only those that came or went are sent.
"""

import contextlib
import io
import os
import pickle
import socket
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from policy.cluster.snapshot import Cluster

UNSEEN = b"unseen"
"""The answerer's message that it gave places to jobs that no snapshot has shown yet."""

HURRY = b"hurry"
"""The answerer's message that it gave a place to a job for which a guest has to leave."""


_ALIVE = b"alive"
"""The planner's sign of life."""

_SIGN_EVERY = 1.0
"""The least seconds between two signs of life."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that the answerer needs; if Slurm could not be read, `cluster` is None and `problem` says why."""

    cluster: Cluster | None
    seen: AbstractSet[str]
    """Nonces of the jobs that Slurm shows. The receiver brings this set up to date when the next snapshot comes."""
    version: str
    gateway: str
    problem: str
    leave: str = ""
    """The reason why all jobs are left to Slurm; empty if they are not."""
    refused: frozenset[str] = frozenset()
    """Nonces of jobs that Slurm refused at their submission."""
    observed: Mapping[str, str] = field(default_factory=dict)
    """The counts of a Berth that only watches, for `berth status`."""
    notices: int = 0
    notices_late: int = 0
    """Notices whose Epilogs went on before the pins were written."""
    updates: int = 0
    took: Mapping[str, str] = field(default_factory=dict)
    """The median milliseconds of the planner's last readings and passes, for `berth status`."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Jobs that failed since berthd's start, by class, for `berth status`."""
    given_up: Mapping[str, int] = field(default_factory=dict)
    """By node, a mask of the GPUs whose packed jobs are to move elsewhere by changes that are not written yet."""
    gone: AbstractSet[str] = frozenset()
    """Only while it is sent: nonces of jobs that went since the last snapshot; `seen` then has only those that came."""


class Sender:
    """The planner's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sent: dict[str, object] = {}
        self._seen: AbstractSet[str] = frozenset()
        self._next_sign = 0.0

    def sign(self) -> None:
        """Sends a sign of life, at most once a second."""
        now = time.monotonic()
        if now < self._next_sign:
            return
        self._next_sign = now + _SIGN_EVERY
        # A full channel has enough signs in it; if the other end is gone, the next read shows it.
        with contextlib.suppress(OSError):
            self._channel.send(_ALIVE, socket.MSG_DONTWAIT)

    def send(self, snapshot: Snapshot) -> None:
        """Sends a snapshot."""
        data = io.BytesIO()
        seen = self._seen if snapshot.cluster is None else snapshot.seen
        came, gone = (seen - self._seen, self._seen - seen) if seen is not self._seen else (frozenset(), frozenset())
        _Pickler(data, self._sent).dump(replace(snapshot, seen=came, gone=gone))
        file = os.memfd_create("berth-snapshot", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", closefd=False) as whole:
                whole.write(data.getbuffer())
            socket.send_fds(self._channel, [b"snapshot"], [file])
        finally:
            os.close(file)
        self._sent |= _lasting(snapshot)
        self._seen = seen


class Receiver:
    """The answerer's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        # Python's recv_fds passes no flags on, so the socket itself must not block.
        channel.setblocking(False)  # noqa: FBT003 - its only argument
        self._channel = channel
        self._known: dict[str, object] = {}
        self._seen: set[str] = set()
        self._sign = False

    def take_sign(self) -> bool:
        """Tells whether there was a sign of life since the last call; a snapshot counts if it has a cluster."""
        sign, self._sign = self._sign, False
        return sign

    def receive(self) -> Snapshot | None:
        """Returns the newest snapshot that has come, or None; raises EOFError if the planner is gone."""
        newest: Snapshot | None = None
        while True:
            try:
                message, files, _, _ = socket.recv_fds(self._channel, 64, 4)
            except BlockingIOError:
                return newest
            if not message:
                if newest is None:
                    raise EOFError
                return newest
            self._sign = self._sign or message == _ALIVE
            for file in files:
                with open(file, "rb") as whole:  # noqa: PTH123 - a descriptor has no path
                    whole.seek(0)
                    one: Snapshot = _Unpickler(whole, self._known).load()
                self._seen -= one.gone
                self._seen |= one.seen
                one = replace(one, seen=self._seen, gone=frozenset())
                self._sign = self._sign or one.cluster is not None
                newest = one
                self._known |= _lasting(one)


def _lasting(snapshot: Snapshot) -> dict[str, object]:
    """Returns the parts of a snapshot that both ends remember."""
    cluster = snapshot.cluster
    return {} if cluster is None else {"fleet": cluster.fleet, "neighbours": cluster.neighbours}


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: dict[str, object]) -> None:
        super().__init__(file, protocol=5)
        # By identity: they cannot be compared.
        self._names = {id(value): name for name, value in known.items() if value is not None}

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):  # only ever reads what our own child process wrote into an inherited socket
    def __init__(self, file: Any, known: dict[str, object]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, name: str) -> object:
        return self._known[name]
