# SPDX-License-Identifier: Apache-2.0
"""The planning process's loop: a pass every tick; between two passes it handles notices and writes updates."""

import argparse
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from policy.cluster.reserved import know_users_by
from policy.daemon.hear.notices import Notices, open_notices
from policy.daemon.known.users import names_of
from policy.daemon.passes.handover import HURRY, UNSEEN, Sender
from policy.daemon.passes.overviews import OverviewWriter
from policy.daemon.passes.planner import HAND_OVER_EVERY, REST, Planner
from policy.formats.errors import BerthError
from policy.site import log
from policy.site.config import load
from policy.slurm.gateways import open_gateway

_SHOWN_AFTER = 0.05
"""Seconds after its answer until Slurm shows a job."""
_LATELY = 8
"""The last passes, and answers to notices, by which the time of the next one is estimated."""
_READ_WITHIN = 1.5
"""Ticks from the start of a reading to the end of the next one, unless a reading takes longer than half a tick: faults
must be mended within two seconds."""
_TURN = 0.0005
"""Seconds for which a pass holds the interpreter before another thread gets it; a notice needs it some six times."""
_COLLECT_EVERY = 10.0
"""Seconds between two collections of garbage. A collection delays notices, so it waits up to as long again for a quiet
moment."""
_COLLECT_PART = 1_000
"""The least pause after a collection, as a multiple of its time: the more jobs, the longer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans until the answerer's end of the channel closes; returns the exit status."""
    know_users_by(names_of)
    parser = argparse.ArgumentParser(prog="berthd-planner")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--overview", type=Path)
    options = parser.parse_args(arguments)
    # The answerer decides when to end: it closes the channel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Planning gives way to processes that answer a waiting user.
    os.nice(1)
    sys.setswitchinterval(_TURN)
    channel = socket.socket(fileno=options.channel)
    try:
        config = load(options.config)
        gateway = open_gateway(config.gateway if options.gateway == "auto" else options.gateway, log.info)
        overviews = OverviewWriter(options.overview) if options.overview else None
        planner = Planner(gateway, config, Sender(channel), overviews)
        listener = open_notices(config.notice_port, config.munge_socket) if config.notice_port else None
        try:
            _passes(planner, channel, config.tick, listener)
        finally:
            planner.close()
    except BerthError as problem:
        log.error(problem)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0


def _passes(planner: Planner, channel: socket.socket, tick: float, listener: Notices | None) -> None:
    # As in the answerer, the collector skips objects that exist now.
    gc.freeze()
    gc.disable()
    collect_at = 0.0
    ended = False
    passes, takes = deque([0.0], maxlen=_LATELY), deque([0.0], maxlen=_LATELY)
    heard: list[socket.socket | Notices] = [channel, *([listener] if listener else [])]
    while True:
        began = time.monotonic()
        with _busy(listener, passes):
            planner.one_pass(ended=ended)
        due = began + pause(tick, planner.look_takes)
        write_until = _write_until(began, time.monotonic(), tick)
        if listener:
            listener.in_charge, planner.notices_late = planner.in_charge, listener.late
        ended, left, writing = False, tick, True
        # At least once, however long the pass took: an Epilog waits.
        while left > 0 or (writing and time.monotonic() < write_until):
            left = due - time.monotonic()
            wait = 0.0 if writing else max(0.0, min(left, HAND_OVER_EVERY))
            readable, _, _ = select.select(heard, [], [], wait)
            if channel in readable:
                word = channel.recv(64)
                if not word:
                    return
                ended = ended or UNSEEN in word
                if HURRY in word:
                    due = min(due, time.monotonic() + _SHOWN_AFTER)
                    left = min(left, _SHOWN_AFTER)
            if listener and (found := listener.ready()):
                # Notices that come meanwhile are handled after these.
                with _busy(listener, takes, len(found)):
                    planner.take(found)
                writing = True
            planner.hand_over_if_due()
            writing = writing and planner.write_one()
            quiet = not (writing or readable)
            if (now := time.monotonic()) >= (collect_at if quiet else collect_at + _COLLECT_EVERY):
                gc.collect()
                collect_at = now + max(_COLLECT_EVERY, _COLLECT_PART * (time.monotonic() - now))


@contextmanager
def _busy(listener: Notices | None, lately: deque[float], count: int = 1) -> Iterator[None]:
    """Tells the threads of the notices how long the planner will be busy, by the longest of the last times for each.

    If that is too short, an Epilog waits in vain. Too long a time costs less: its node's jobs are pinned a bit later.
    """
    began = time.monotonic()
    if listener:
        listener.busy_until = began + count * max(lately)
    yield
    if listener:
        listener.busy_until = 0.0
    lately.append((time.monotonic() - began) / count)


def pause(tick: float, look_takes: float) -> float:
    """Returns the seconds from one reading to the next.

    >>> pause(1.0, 0.01), pause(1.0, 0.06), pause(1.0, 0.25), pause(1.0, 0.75)
    (1.0, 1.2, 1.25, 1.0)
    """
    return max(tick, min(REST * look_takes, _READ_WITHIN * tick - look_takes))


def _write_until(began: float, ended: float, tick: float) -> float:
    """Returns the time until which writing may delay the next pass, which plans anew what was not written.

    If passes take longer than a tick, there would otherwise be time for only one update a pass.
    """
    took = ended - began
    return ended + took / 2 if took > tick else began


if __name__ == "__main__":
    sys.exit(main())
