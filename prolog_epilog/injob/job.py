# SPDX-License-Identifier: Apache-2.0
"""The process's side of the word: heartbeat and gate for any program; standard library only."""

import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from prolog_epilog.injob import word
from prolog_epilog.injob.errors import InjobError
from prolog_epilog.injob.law import DutyLaw
from prolog_epilog.injob.word import OPEN, Order, WordSlot, map_order, read_order

VARIABLE = "BERTH_WORD"
"""Environment variable of the job: its words on this node, in the order of its CUDA devices, joined by colons."""
CHOICE = "BERTH_INJOB"
"""Environment variable that the user may set: `off` leaves the program alone, `verbose` tells why nothing happens."""
LIBRARY = "libberth_injob"
SHUT_POLL_S = 0.002
LONGEST_NAP_S = 0.05
"""A nap is cut into pieces of this length, so that a changed order is seen soon."""


def words_of(environment: str) -> tuple[Path, ...]:
    """Returns the words that the environment names."""
    return tuple(Path(one) for one in environment.split(":") if one)


def number_of_ranks() -> int:
    """Returns the number of processes of this job that wait for each other at each step, as launchers tell it."""
    for variable in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return 1


def fingerprint(ranks: int) -> int:
    """Returns a number for what runs here: the same command with as many ranks has the same. It reveals no text.

    A CRC keeps what a job loads small. Two commands that share one by chance only blur what is learned about GPUs.
    """
    # The program's folder may differ from node to node.
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]] if sys.argv else []  # noqa: PTH119 - no pathlib in jobs
    return 1 << 32 | zlib.crc32("\0".join([str(ranks), *words]).encode(errors="surrogateescape"))


def library_gates() -> bool:
    """Tells whether the library is in this process: LD_PRELOAD may name a missing file, as in a container."""
    if LIBRARY not in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - read line by line
            return any(LIBRARY in line for line in maps)
    except OSError:
        return False


class Job:
    """One process's view of its words.

    It obeys the strictest of all words of its job on this node, because what slows one rank slows all. It beats on the
    word of its own device, from the first beat on. Without a word every call does nothing, and `why` gives the reason.
    """

    def __init__(self, words: tuple[Path, ...], device: int = 0, *, ranks: int = 1) -> None:
        self.why = ""
        self.drain: Callable[[], None] | None = None
        """Waits until the GPU has done what was queued; set by the code that knows the framework."""
        self.pause_allowed: Callable[[], bool] | None = None
        """Returns False while a nap would do harm, as while a CUDA graph is recorded."""
        self.gated_elsewhere = library_gates()
        """True if the library already gates each launch."""
        self._lock = threading.Lock()
        self._law = DutyLaw(ranks=ranks)
        self._ranks = ranks
        self._idle_before = 0
        self._was_open = True
        self._last_step: float | None = None
        self._words = words
        self._device = device
        self.place: WordSlot | None = None
        self._orders: list[memoryview] = []
        if not words:
            self.why = f"{VARIABLE} is not set: this job shares no GPU that a guard watches, so there is nothing to do"
            return
        try:
            self._orders = [map_order(one) for one in words]
        except (InjobError, OSError, ValueError) as error:
            self._stop(f"{error}; in a container, bind {words[0].parent} into it")

    def _stop(self, why: str) -> None:
        self.why, self._orders = why, []

    def sit(self, device: int | None = None, uuid: str = "") -> WordSlot | None:
        """Takes the place at the word of a device, which is known by its UUID or else by its number."""
        if self.place is None and self._orders:
            if device is not None:
                self._device = device
            named = [number for number, one in enumerate(self._words) if one.name.lower() == uuid.lower()]
            self._device = named[0] if named else self._device % len(self._words)
            try:
                self.place = WordSlot(self._words[self._device], elsewhere=self.gated_elsewhere)
                self.place.numbers[word.APP] = fingerprint(self._ranks)
            except (InjobError, OSError, ValueError) as error:
                self._stop(f"{error}; in a container, bind {self._words[0].parent} into it")
        return self.place

    def appear(self) -> None:
        """Takes the place before the first beat, if there is only one: so the guard sees that there is a gate."""
        if len(self._words) == 1:
            self.sit()

    def order(self) -> Order:
        """Returns the order on this process's own GPU."""
        return read_order(self._orders[self._device % len(self._orders)]) if self._orders else Order()

    def duty(self) -> int:
        """Returns the strictest duty among the job's words, in permille."""
        return min((read_order(numbers).duty for numbers in self._orders), default=OPEN)

    def ready(self) -> bool:
        """Reports that preparation is over and the steps begin; returns whether there is a guard to hear it."""
        place = self.sit()
        if place is None:
            return False
        place.numbers[word.READY] = 1
        self._last_step = time.monotonic()
        return True

    def together(self, ranks: int) -> None:
        """Takes a number of ranks that the environment did not tell: a step's time is then not the rank's alone."""
        if ranks > self._ranks:
            self._ranks = ranks
            if self.place is not None:
                self.place.numbers[word.APP] = fingerprint(ranks)

    def step(self, seconds: float | None = None, own: float | None = None) -> None:
        """Reports a finished step, or a served request and how long it took; then idles for the time still owed.

        `own`: the seconds that this rank's GPU took for it without waiting for other ranks, if the program knows them.
        """
        if self.sit() is None:
            return
        now = time.monotonic()
        if seconds is None and self._last_step is not None:
            seconds = now - self._last_step
        self._last_step = now
        if seconds is not None:
            self.beat(seconds, own)
        self.end_step()

    def end_step(self) -> None:
        """Idles for the time that is still owed at the end of a step."""
        if not self._was_open or self.duty() != OPEN:
            self._pass(self._law.step, at_end=True)

    def beat(self, seconds: float, own: float | None = None) -> None:
        """Writes one step into the heartbeat; a job's only rank waits for no other."""
        place = self.sit()
        if place is None:
            return
        numbers = place.numbers
        steps = numbers[word.STEPS]
        place.recent[steps % word.RECENT] = min(round(seconds * 1e6), 0xFFFFFFFF)
        numbers[word.AT] = time.monotonic_ns()
        numbers[word.STEP_NS] += max(round(seconds * 1e9), 0)
        if own is None and self._ranks == 1:
            own = seconds
        if own is not None:
            self.beat_own(own)
        numbers[word.READY] = 1
        numbers[word.STEPS] = steps + 1

    def beat_own(self, seconds: float) -> None:
        """Reports the time that this rank's GPU took by itself for a step."""
        place = self.sit()
        if place is None:
            return
        numbers = place.numbers
        idle, self._idle_before = self._idle_before, numbers[word.IDLE_NS]
        # A step with naps in it says nothing about the GPU.
        if seconds > 0.0 and idle == numbers[word.IDLE_NS]:
            numbers[word.OWN_NS] += round(seconds * 1e9)
            numbers[word.OWN_STEPS] += 1

    def gate(self) -> None:
        """Waits here for as long as the guard asks; takes a few hundred nanoseconds when it asks nothing."""
        if self.duty() != OPEN:
            self._pass(self._law.boundary, at_end=False)

    def report_memory(self, used: int, peak: int, spilled: int) -> None:
        """Writes the memory that the process holds, in bytes."""
        if self.place is not None:
            self.place.numbers[word.USED] = used
            self.place.numbers[word.PEAK] = peak
            self.place.numbers[word.SPILLED] = spilled

    def _pass(self, settle: Callable[[float, float], float], *, at_end: bool) -> None:
        """Idles as the law says; all threads that arrive meanwhile wait together."""
        if self.gated_elsewhere or (self.pause_allowed is not None and not self.pause_allowed()):
            return
        with self._lock:
            epoch, duty = self.order().epoch, self.duty()
            was_open, self._was_open = self._was_open, duty == OPEN
            if duty == OPEN:
                return
            if was_open:
                self._law.reset(time.monotonic())
            if at_end and self.drain is not None:
                self.drain()
            if duty == 0:
                duty = self._wait_until_open(epoch)
            if duty == OPEN:
                return
            nap = settle(time.monotonic(), duty / OPEN)
            if nap > 0:
                if not at_end and self.drain is not None:
                    self.drain()
                self._nap(nap, duty, epoch)

    def _wait_until_open(self, epoch: int) -> int:
        if self.drain is not None:
            self.drain()
        self._obey(epoch)
        began = time.monotonic()
        while (duty := self.duty()) == 0:
            time.sleep(SHUT_POLL_S)
        self._law.shut(self._idle_since(began))
        return duty

    def _nap(self, seconds: float, duty: int, epoch: int) -> None:
        self._obey(epoch)
        began = time.monotonic()
        until = began + seconds
        while (left := until - time.monotonic()) > 0 and self.duty() == duty:
            time.sleep(min(left, LONGEST_NAP_S))
        self._law.idled(self._idle_since(began))

    def _obey(self, epoch: int) -> None:
        """Reports at the begin of a nap that this order is obeyed: at a small duty a long step's nap takes minutes."""
        place = self.sit()
        if place is not None:
            place.numbers[word.EPOCH] = epoch

    def _idle_since(self, began: float) -> float:
        idle = time.monotonic() - began
        if self.place is not None:
            self.place.numbers[word.IDLE_NS] += round(idle * 1e9)
        return idle


def open_job(device: int | None = None) -> Job:
    """Returns the job of this process, as its environment tells."""
    if device is None:
        local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
        device = int(local) if local.isdecimal() else 0
    if os.environ.get(CHOICE) == "off":
        job = Job(())
        job.why = f"{CHOICE} is off: nothing is done in this program"
        return job
    return Job(words_of(os.environ.get(VARIABLE, "")), device, ranks=number_of_ranks())
