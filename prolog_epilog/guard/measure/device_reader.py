# SPDX-License-Identifier: Apache-2.0
"""Reads the devices in a thread, so that a driver that hangs does not hold up the guard's main thread."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.guard.measure.telemetry import Telemetry
from prolog_epilog.guard.mishaps import sentence
from prolog_epilog.node import cgroups

PERIOD = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """The observed state of one GPU."""

    sample: DeviceSample
    jobs: frozenset[int | None]
    """The jobs with a process on it."""
    memory_bytes: int
    held: Mapping[int | None, int] = field(default_factory=dict)
    """The bytes that the processes of each job hold."""


class DeviceReader:
    """The newest look at each watched GPU, and the Xids that came since they were asked for."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.looks: dict[str, Look] = {}
        self._say = say
        self._wanted: frozenset[str] = frozenset()
        self._xids: deque[tuple[str, int]] = deque(maxlen=256)
        self._stop = threading.Event()
        self._telemetry: Telemetry | None = None
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Stops the thread; does not wait for a driver that hangs."""
        self._stop.set()
        self._thread.join(seconds)

    def watch(self, uuids: Iterable[str]) -> None:
        """Reads these GPUs from now on; if there are none, the driver is closed."""
        self._wanted = frozenset(uuids)

    def xids(self) -> list[tuple[str, int]]:
        """Returns the Xids since the last call: GPU and number."""
        return [self._xids.popleft() for _ in range(len(self._xids))]

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self._look()
            except Exception as problem:  # noqa: BLE001 - without this thread no device is seen any more
                self._say(sentence(problem))
                self._close()
            due = max(due + PERIOD, time.monotonic())
            self._listen(due)
        self._close()

    def _look(self) -> None:
        wanted = self._wanted
        if self._telemetry is not None and self._telemetry.uuids != wanted:
            self._close()
        if self._telemetry is None and wanted:
            self._telemetry = Telemetry(sorted(wanted))
        telemetry, looks = self._telemetry, {}
        for uuid in wanted if telemetry is not None else ():
            if telemetry is not None and (sample := telemetry.sample(uuid)) is not None:
                held = Counter[int | None]()
                for pid, memory in telemetry.users(uuid).items():
                    held[cgroups.job_of(pid)] += memory
                looks[uuid] = Look(sample, frozenset(held), sample.memory_bytes, held)
        self.looks = {**{uuid: look for uuid, look in self.looks.items() if uuid in wanted}, **looks}

    def _listen(self, due: float) -> None:
        while not self._stop.is_set() and (left := due - time.monotonic()) > 0.0:
            if self._telemetry is None or self._telemetry.uuids != self._wanted:
                # Newly wanted GPUs are read soon, so that a guest's owner is known early.
                self._stop.wait(min(left, 0.1))
                continue
            found = self._telemetry.xid(min(left, 0.25))
            if found is not None:
                self._xids.append(found)

    def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
            self._telemetry = None
