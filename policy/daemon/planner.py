"""The planning process: reads Slurm, keeps the pins of waiting jobs right, hands pictures to the answerer.

It may take its time, and it may die: the answerer goes on with the last picture and starts a new one.
"""

import argparse
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from policy.daemon import log
from policy.daemon.config import Config, load
from policy.daemon.explainer import Explainer
from policy.daemon.fleets import Fleets
from policy.daemon.handover import UNSEEN, Sender, Snapshot
from policy.daemon.notices import Notice, Notices, open_notices
from policy.daemon.pins import Pins
from policy.daemon.watcher import Watcher
from policy.errors import BerthError, SlurmError
from policy.facts import Reading
from policy.moves import Change, Move
from policy.picture import Picture
from policy.placement.registry import create
from policy.plan import Plan
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway

_CHEAP = 0.01
"""Seconds of a whole pass up to which each notice gets one; it knows better than a look at a few nodes."""

_HAND_OVER_EVERY = 0.2
"""Seconds between pictures for the answerer that notices give rise to: each costs it a millisecond or two."""


class Planner:
    """One pass after another, and in between what an ended job frees."""

    def __init__(self, gateway: Gateway, config: Config, sender: Sender) -> None:
        self._gateway = gateway
        self._sender = sender
        self._fleets = Fleets(config)
        self._plan = Plan(create(config.policy), config.settings)
        self._pins = Pins(gateway, config.pinned_file)
        self._explainer = Explainer(gateway, create(config.policy))
        self._watcher = Watcher(create(config.policy)) if config.observe else None
        self._picture: Picture | None = None
        self._problem = ""
        self._reading: Reading | None = None
        self._changed: frozenset[int] = frozenset()
        self._handed_over = 0.0
        self._stale = False
        self._pass_took = 0.0
        self.notices_taken = 0

    def one_pass(self, *, ended: bool) -> None:
        """Read, plan, hand over, then write: the answerer must not wait for updates."""
        picture = self._look(ended=ended)
        if picture is None or self._reading is None:
            return
        if self._watcher is not None:
            self._watcher.watch(picture.book(), self._reading)
        changes = self._replan(picture, self._reading)
        self._hand_over(self._reading)
        if self._acts:
            self._write(changes, self._reading)
            self._pins.list_pinned(self._plan.queue)
            self._pins.written += self._explainer.explain(self._plan, picture.book(), changes)

    def take(self, found: Sequence[Notice]) -> None:
        """Plan what ended jobs have freed: pins on their nodes first, then their Epilogs go on, then the other pins."""
        self.notices_taken += len(found)
        rest: Sequence[Change] = ()
        try:
            rest = self._use_freed(found)
        finally:
            for notice in found:
                notice.answer(done=self._reading is not None and self._reading.in_control)
        if rest and self._reading is not None:
            self._write(rest, self._reading)
        self.hand_over_if_due()

    def hand_over_if_due(self) -> None:
        """Let the answerer know what notices have changed."""
        if self._stale and self._reading is not None and time.monotonic() - self._handed_over >= _HAND_OVER_EVERY:
            self._hand_over(self._reading)

    def _use_freed(self, found: Sequence[Notice]) -> list[Change]:
        picture = self._picture
        if picture is None or self._reading is None or not self._acts:
            return []
        nodes = {picture.fleet.index[notice.node] for notice in found if notice.node in picture.fleet.index}
        # Asking Slurm would cost the Epilog the wait for slurmctld's locks, for what the notices say themselves.
        known = [picture.end(notice.job, notice.node) for notice in found]
        if not all(known):
            if self._look(ended=False) is not picture:
                return []
            nodes |= self._changed
        changes = self._plan.freed(picture, nodes, self._reading.jobs) if self._pass_took > _CHEAP else None
        if changes is None:
            changes = self._replan(picture, self._reading)
        self._stale = True
        names = {notice.node for notice in found}
        here = [change for change in changes if isinstance(change, Move) and not names.isdisjoint(change.berth.names)]
        self._write(here, self._reading)
        return [change for change in changes if change not in here]

    def _replan(self, picture: Picture, reading: Reading) -> list[Change]:
        began = time.monotonic()
        changes = self._plan.replan(picture.book(), reading.jobs)
        self._pass_took = time.monotonic() - began
        return changes

    @property
    def _acts(self) -> bool:
        """Whether pins are ours to write: not on a standby, in a federation, or while only watching."""
        reading = self._reading
        return reading is not None and reading.in_control and not reading.federated and self._watcher is None

    def _write(self, changes: Sequence[Change], reading: Reading) -> None:
        for job_id in self._pins.write(changes, reading):
            self._plan.reread(job_id)

    def _look(self, *, ended: bool) -> Picture | None:
        """Bring the picture up to date; None where Slurm cannot be read."""
        try:
            reading = self._gateway.read(ended=ended)
        except SlurmError as problem:
            if str(problem) != self._problem:
                log.error(f"{problem}; the last picture of Slurm stays in use")
            self._problem = str(problem)
            self._sender.send(Snapshot(None, frozenset(), "", self._gateway.name, str(problem)))
            return None
        if self._problem:
            log.info("Slurm can be read again")
            self._problem = ""
        self._reading = reading
        fleet = self._fleets.of(reading)
        if self._picture is None or self._picture.fleet is not fleet:
            self._picture = Picture(fleet)
        self._changed = self._picture.update(reading)
        return self._picture

    def _hand_over(self, reading: Reading) -> None:
        book = self._plan.book
        assert book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        federated = "the cluster is in a federation, whose jobs Berth leaves alone" if reading.federated else ""
        self._sender.send(
            Snapshot(
                book.cluster,
                reading.seen,
                reading.version,
                self._gateway.name,
                "",
                leave=federated,
                observed=self._watcher.told() if self._watcher else {},
                notices=self.notices_taken,
                updates=self._pins.written,
            )
        )
        self._handed_over, self._stale = time.monotonic(), False


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan until the answerer's end of the channel closes."""
    parser = argparse.ArgumentParser(prog="berthd-planner")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--gateway", required=True)
    options = parser.parse_args(arguments)
    # The answerer decides when to end: it closes the channel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Planning gives way to whatever answers a waiting user.
    os.nice(1)
    channel = socket.socket(fileno=options.channel)
    try:
        config = load(options.config)
        gateway = open_gateway(config.gateway if options.gateway == "auto" else options.gateway, log.info)
        planner = Planner(gateway, config, Sender(channel))
        listener = open_notices(config.notice_port, config.munge_socket) if config.notice_port else None
        _passes(planner, channel, config.tick, listener)
    except BerthError as problem:
        log.error(problem)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0


def _passes(planner: Planner, channel: socket.socket, tick: float, listener: Notices | None) -> None:
    ended = False
    heard: list[socket.socket | Notices] = [channel, *([listener] if listener else [])]
    while True:
        due = time.monotonic() + tick
        planner.one_pass(ended=ended)
        ended, left = False, tick
        # At least once, however long the pass took: an Epilog waits.
        while left > 0:
            left = due - time.monotonic()
            readable, _, _ = select.select(heard, [], [], max(0.0, min(left, _HAND_OVER_EVERY)))
            if channel in readable:
                word = channel.recv(64)
                if not word:
                    return
                ended = ended or word == UNSEEN
            if listener and (found := listener.ready()):
                planner.take(found)
            planner.hand_over_if_due()


if __name__ == "__main__":
    sys.exit(main())
