# SPDX-License-Identifier: Apache-2.0
"""Trouble during a replay: daemons die, nodes are drained, clocks are off. Each act is kept with its moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Self

from .testbed import NODES, TestbedError, shell

KILL_EVERY, DRAIN_EVERY, DRAINED_FOR = 20.0, 15.0, 10.0
DEAF_EVERY = 10.0
"""Seconds after which Epilogs stop telling berthd that a job ends, or begin again: half of all notices are lost."""

CLOCK_OFF = -120
"""Seconds by which one host's clock is off all the time (`Testbed.prepare`). Five minutes and more would be no trouble
of ours: munge refuses all that such a node says, to slurmctld as to berthd."""

RESTART_AT = 0.5
"""Part of the time of arrivals after which slurmctld is restarted."""

CONF = "/etc/slurm/berth.conf"
PINNED = "squeue --noheader --states=PENDING -O ReqNodes:200 | grep -c '[a-z]'; true"


class Chaos:
    """Runs beside a replay, in a thread of its own, until the last job has come."""

    def __init__(self, controller: str, span: float, seed: int) -> None:
        """`span`: seconds for which jobs come."""
        self.acts: list[str] = []
        self.pins_left = -1
        """Waiting jobs still pinned after berthd had ended for good; -1: that was not tried."""
        self._controller = controller
        self._span = span
        self._draws = Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for moment, what, script in sorted(self.script()):
            if self._stop.wait(max(0.0, self._began + moment - time.monotonic())):
                break
            self._act(what, script)
        if not self._stop.is_set():
            # As systemd does by ExecStopPost.
            self._act("berthd stopped for good", "svc berthd stop; berth release --all")
            self.pins_left = int(self._act("waiting jobs with required nodes", PINNED) or -1)

    def script(self) -> Iterator[tuple[float, str, str]]:
        """What happens when: the moment, a word for people, and the commands."""
        moment = KILL_EVERY
        while moment < self._span:
            yield moment, "berthd killed", "svc berthd kill"
            moment += KILL_EVERY
        moment = DRAIN_EVERY
        while moment < self._span:
            node = f"n{self._draws.randint(1, NODES)}"
            yield moment, f"{node} drained", f"scontrol update NodeName={node} State=DRAIN Reason=replay"
            yield moment + DRAINED_FOR, f"{node} resumed", f"scontrol update NodeName={node} State=RESUME"
            moment += DRAIN_EVERY
        for turn in range(1, 2 * int(self._span / DEAF_EVERY / 2) + 1):
            old, new = ("hosts", "#hosts") if turn % 2 else ("#hosts", "hosts")
            yield turn * DEAF_EVERY, f"notices {'off' if turn % 2 else 'on'}", f"sed -i 's/^{old} *=/{new} =/' {CONF}"
        yield RESTART_AT * self._span, "slurmctld restarted", "svc slurmctld restart"
        yield self._span, "the last job came", "true"

    def _act(self, what: str, script: str) -> str:
        try:
            said = shell(self._controller, script).strip()
        except TestbedError as problem:
            said = str(problem)
        self.acts.append(f"{time.monotonic() - self._began:.1f} s: {what} {said}".rstrip())
        return said
