# SPDX-License-Identifier: Apache-2.0
"""berthd's two processes as objects: the answering one's `Answerer`, the planning one's `Planner`, the real channel."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import UNSEEN, Receiver, Sender
from policy.daemon.passes.planner import Planner
from policy.request.settings import RelocationRules, Settings, Sharing
from policy.site.config import Config
from policy.slurm.by_command.command import CommandGateway
from tests.world.clock import VirtualTime

MOST_WAITING = 20
"""Snapshots that may wait in the channel; beyond, the sender would wait, as in the daemon."""


def config_of(folder: Path, bits: int) -> Config:
    """A site's settings, chosen by bits."""
    sharing = Sharing(
        multi_user=bool(bits & 1),
        way="time" if bits & 2 else "mps",
        evict_grace=5 if bits & 4 else 0,
        guest_after=60 if bits & 8 else None,
    )
    settings = Settings(
        exclude_others=1 if bits & 16 else 32,
        pin_ahead=not bits & 64,
        look_ahead=bool(bits & 256),
        # berthd starts with no other mix.
        moving=RelocationRules(enabled=bits & (128 | 64) == 128, after=10, grace=5, restart=1),
        sharing=sharing,
        locality_wait=30,
    )
    return Config(
        topology_dir=folder / "topology",
        fabric="none",
        pinned_file=folder / "pinned",
        settings=settings,
    )


class BerthdProcesses:
    """Both of them; each may be dead."""

    def __init__(self, config: Config, clock: VirtualTime) -> None:
        self.config, self._clock = replace(config), clock
        self.answerer: Answerer | None = None
        self.planner: Planner | None = None
        self._receiver: Receiver | None = None
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self.waiting = 0
        self.seen: frozenset[str] = frozenset()
        """Nonces of the jobs that the last picture knows."""
        self.life = 0
        """Starts the planner; nobody answers what an earlier one left."""

    def start(self) -> None:
        """Start what is dead, as systemd and the answering process do."""
        if self.answerer is None:
            self.answerer = Answerer(self.config, "0", 1)
        if self.planner is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.settimeout(5.0)
            self._sockets = ours, theirs
            self._receiver = Receiver(ours)
            self.planner = Planner(CommandGateway(), self.config, Sender(theirs))
            self.waiting = 0
            self.life += 1

    def kill(self, *, all_of_it: bool) -> None:
        """Without a word of farewell."""
        self.planner = self._receiver = None
        if self._sockets is not None:
            for one in self._sockets:
                one.close()
            self._sockets = None
        if all_of_it:
            self.answerer = None

    def hear(self) -> None:
        """The answering process takes what has come."""
        if self._receiver is None or self.answerer is None:
            return
        self.waiting = 0
        snapshot = self._receiver.receive()
        if snapshot is not None and snapshot.cluster is not None:
            self.seen = frozenset(snapshot.seen)
        if snapshot is not None and self.answerer.take(snapshot, self._clock.time()):
            assert self._sockets is not None
            self._sockets[0].send(UNSEEN)
        while self.answerer.catching_up:
            self.answerer.catch_up()

    def word(self) -> bool:
        """Tells whether the answering process asks to look at jobs that are over too."""
        if self._sockets is None:
            return False
        theirs = self._sockets[1]
        theirs.setblocking(False)
        try:
            return UNSEEN in theirs.recv(64)
        except BlockingIOError:
            return False
        finally:
            theirs.settimeout(5.0)

    def make_room(self) -> None:
        """Never let the channel fill up: the sender waits for its other end then."""
        self.waiting += 1
        if self.waiting >= MOST_WAITING:
            self.hear()
