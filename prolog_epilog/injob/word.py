# SPDX-License-Identifier: Apache-2.0
"""The word between guard and job: `berth-word/1`, as docs/develop/formats.md describes it.

It has two pages for each job and GPU. The *order* belongs to root, and the job can only read it. The *beat* belongs to
the job's user; the guard reads it with pread and trusts nothing in it. So a job that cuts, grows or fills it with
garbage harms only its own heartbeat. Each number is one aligned 64-bit store, so neither side ever waits for the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.injob.errors import WordError

PAGE = 4096
SLOT = 256
SLOTS = range(1, PAGE // SLOT)
"""The slots for the processes of a job; the first SLOT bytes are the page's head."""
RECENT = 16
"""Number of the last step times that a slot keeps."""

ORDER_MAGIC = int.from_bytes(b"BERTHWD1", "little")
BEAT_MAGIC = int.from_bytes(b"BERTHBT1", "little")
OPEN = 1000
"""The duty in permille at which no process waits."""

# Places of the 64-bit numbers of the order.
MAGIC, DUTY, MEMORY, HOST_BOUND, UNTIL, QUOTA, GUEST = range(7)
# Places of the 64-bit numbers of a slot; RECENT_AT is in bytes.
PROCESS, READY, AT, STEPS, STEP_NS, IDLE_NS, LAUNCHES, USED, PEAK, SPILLED, EPOCH, REFUSED, UNKNOWN = range(13)
OWN_STEPS, OWN_NS, APP = range(13, 16)
RECENT_AT = 128
MOVED, LACKING = 25, 26
"""They stand behind the last step times and a number of an earlier release."""

LIBRARY = 1 << 32
"""Set in PROCESS if the library for any CUDA program writes the slot, and not Python."""
ELSEWHERE = 1 << 33
"""Set in PROCESS by Python if the library gates the process: this slot only beats."""

_SLOT_NUMBERS = struct.Struct(f"<16Q{RECENT}I8xQQ")
_MOST = 1 << 62
"""No counter of an honest job ever reaches this."""


@dataclass(frozen=True, slots=True)
class Order:
    """The guard's order to a job on one GPU."""

    duty: int = OPEN
    """The permille of the time in which the job may keep the GPU busy; 0 shuts the gate."""
    memory: int = 0
    """The bytes of GPU memory that the job should keep to, by moving data to the host; 0: no limit."""
    host_bound: int = 0
    """The bytes of pinned host memory that it may use to get there."""
    quota: int = 0
    """The bytes beyond which the library refuses an allocation; 0: none."""
    epoch: int = 0
    """A number that grows with each change of duty."""


@dataclass(frozen=True, slots=True)
class WordBeat:
    """The report of one process of the job on itself; counters only grow while the process lives."""

    slot: int
    pid: int
    """The process number as the process sees it: in a container it is not the node's."""
    library: bool
    ready: bool
    at_ns: int
    """The time of the last step, CLOCK_MONOTONIC."""
    steps: int
    step_ns: int
    """The time of all steps together, idle time included."""
    idle_ns: int
    launches: int
    used: int
    peak: int
    spilled: int
    epoch: int
    refused: int
    unknown: int
    recent_us: tuple[int, ...]
    """The last step times, oldest first."""
    own_steps: int = 0
    """The steps for which the process knows how long its GPU took without waiting for other ranks."""
    own_ns: int = 0
    """The sum of that time over all these steps, in nanoseconds."""
    app: int = 0
    """A number that is the same wherever the same command runs with as many ranks; 0: not told."""
    elsewhere: bool = False
    """True if the library gates this process, in a slot of its own."""
    lacking: int = 0
    """The bytes of GPU memory that an owner waits for, which its guest holds."""
    moved: int = 0
    """1, and how often the program's main thread was seen elsewhere while no step ended; 0: nothing looks at it."""


def order_path(word: Path) -> Path:
    """Returns the path of the page that root writes."""
    return word.with_name(f"{word.name}.order")


def beat_path(word: Path) -> Path:
    """Returns the path of the page that the job writes."""
    return word.with_name(f"{word.name}.beat")


def create(folder: Path, uuids: Sequence[str], uid: int, gid: int) -> tuple[Path, ...]:
    """Makes the words of a job in a folder that only root can write; a word that is there keeps its contents."""
    for one in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            one.mkdir(parents=True)
            # A job's programs pass through it, whatever slurmd's umask is.
            one.chmod(0o711)
    words = []
    for uuid in uuids:
        if not uuid or {"/", ":"} & set(uuid):
            raise WordError(f"{uuid!r} cannot name a word: it needs the GPU's UUID without '/' and ':'")
        word = folder / uuid
        _make_page(order_path(word), ORDER_MAGIC, None, 0o644)
        _make_page(beat_path(word), BEAT_MAGIC, (uid, gid), 0o600)
        words.append(word)
    return tuple(words)


def _make_page(path: Path, magic: int, owner: tuple[int, int] | None, mode: int) -> None:
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WordError(f"{path} is no regular file: remove it")
        head = struct.pack("<2Q", magic, OPEN if magic == ORDER_MAGIC else 0)
        if os.pread(descriptor, 8, 0) != head[:8] or os.fstat(descriptor).st_size != PAGE:
            os.ftruncate(descriptor, 0)
            # Write it in full, so that the page stays usable if the file system fills up later.
            os.pwrite(descriptor, head.ljust(PAGE, b"\0"), 0)
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise WordError(f"cannot open {path}: {error.strerror}") from error


def remove(folder: Path) -> None:
    """Removes a job's words; a process that still has one open keeps its last order until the lease ends."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()


class OrderPage:
    """The guard's access to an order. The file belongs to root alone, so mapping it is safe."""

    def __init__(self, word: Path) -> None:
        descriptor = _open(order_path(word), os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != PAGE:
                raise WordError(f"{order_path(word)} is not one page: remove it")
            self._page = mmap.mmap(descriptor, PAGE)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._page).cast("Q")
        if self._numbers[MAGIC] != ORDER_MAGIC:
            raise WordError(f"{order_path(word)} is no berth-word/1: remove it")

    def give(self, duty: int, memory: int = 0, host_bound: int = 0, *, quota: int | None = 0, lease_s: float) -> int:
        """Orders a duty (permille), a memory target and a quota; returns the epoch. A quota of None stays as it is.

        After `lease_s` the gate opens by itself; the quota has no end.
        """
        if not 0 <= duty <= OPEN:
            raise WordError(f"a duty is 0 to {OPEN} permille, not {duty}")
        numbers = self._numbers
        epoch, before = numbers[DUTY] >> 32, numbers[DUTY] & 0xFFFF
        if duty != before:
            epoch = (epoch + 1) & 0xFFFFFFFF
        for place, number in ((MEMORY, memory), (HOST_BOUND, host_bound), (QUOTA, quota)):
            # No GPU has as much as _MOST, so it is no limit; a larger number would not fit.
            if number is not None:
                numbers[place] = min(max(number, 0), _MOST)
        numbers[UNTIL] = time.monotonic_ns() + round(lease_s * 1e9)
        numbers[DUTY] = epoch << 32 | duty
        return epoch

    def tell_owner(self, guest: int, *, lease_s: float) -> None:
        """Tells an owner how many bytes its guest holds: it may wait for that many until `lease_s` is over."""
        self._numbers[GUEST] = min(guest, _MOST)
        self._numbers[UNTIL] = time.monotonic_ns() + round(lease_s * 1e9)

    def close(self) -> None:
        """Closes the page; the order stands until its lease ends."""
        self._numbers.release()
        self._page.close()


def read_order(numbers: memoryview) -> Order:
    """Returns the order in force: open once the lease has ended, so that a dead guard holds no job."""
    duty = numbers[DUTY] & 0xFFFF
    if duty != OPEN and (duty > OPEN or time.monotonic_ns() > numbers[UNTIL]):
        duty = OPEN
    return Order(duty, numbers[MEMORY], numbers[HOST_BOUND], numbers[QUOTA], numbers[DUTY] >> 32)


def read_beats(word: Path) -> tuple[WordBeat, ...]:
    """Returns the beats of the living processes of a job on a GPU; leaves out what cannot be true.

    A page that the job has cut or grown is set back to its size, as is one with blocks beyond its end. If it is cut
    again before it is read, a `WordError` is raised.
    """
    descriptor = _open(beat_path(word), os.O_RDWR | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if found.st_size != PAGE or found.st_blocks * 512 > mmap.PAGESIZE:
            os.ftruncate(descriptor, PAGE)
        page = os.pread(descriptor, PAGE, 0)
        if len(page) != PAGE:
            raise WordError(f"{beat_path(word)} is cut while it is read: its job does that")
        now = time.monotonic_ns()
        held = (slot for slot in SLOTS if any(page[slot * SLOT : slot * SLOT + 8]) and not _free(descriptor, slot))
        return tuple(beat for slot in held if (beat := _decode(page, slot, now)))
    finally:
        os.close(descriptor)


def _decode(page: bytes, slot: int, now: int) -> WordBeat | None:
    numbers = _SLOT_NUMBERS.unpack_from(page, slot * SLOT)
    process, ready, at, steps = numbers[:4]
    step_ns, idle_ns, launches, used, peak, spilled, epoch, refused, unknown = numbers[4:13]
    own_steps, own_ns, app = numbers[13:16]
    moved, lacking = numbers[-2:]
    if max(*numbers[:15], moved, lacking) > _MOST or at > now or (steps and not at):
        return None
    if max(step_ns, idle_ns, own_ns) > now or steps > step_ns:
        return None
    kept = min(steps, RECENT)
    ring = numbers[16 : 16 + RECENT]
    recent = tuple(ring[place % RECENT] for place in range(steps - kept, steps))
    return WordBeat(
        slot, process & 0xFFFFFFFF, bool(process & LIBRARY), ready == 1, at, steps, step_ns, idle_ns,
        launches, used, peak, spilled, epoch, refused, unknown, recent, own_steps, own_ns, app,
        bool(process & ELSEWHERE), lacking, moved,
    )  # fmt: skip


def _lock(slot: int, kind: int) -> bytes:
    # struct flock of 64-bit Linux: type, whence, start, length, pid.
    return struct.pack("@hhqqi4x", kind, os.SEEK_SET, slot * SLOT, SLOT, 0)


def _free(descriptor: int, slot: int) -> bool:
    """Tells whether no living process holds this slot."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(slot, fcntl.F_WRLCK))
    return bool(struct.unpack_from("@h", answer)[0] == fcntl.F_UNLCK)


def map_order(word: Path) -> memoryview:
    """Returns the numbers of an order, read-only."""
    descriptor = _open(order_path(word), os.O_RDONLY)
    try:
        numbers = memoryview(mmap.mmap(descriptor, PAGE, prot=mmap.PROT_READ)).cast("Q")
    finally:
        os.close(descriptor)
    if numbers[MAGIC] != ORDER_MAGIC:
        raise WordError(f"{order_path(word)} is no berth-word/1: this Berth is older or newer than the node's")
    return numbers


class WordSlot:
    """A process's own slot of a beat."""

    def __init__(self, word: Path, *, elsewhere: bool = False) -> None:
        """Takes a free slot; `elsewhere`: the library gates this process."""
        self.word = word
        self._descriptor = _open(beat_path(word), os.O_RDWR)
        slot = next((slot for slot in SLOTS if self._take(slot)), None)
        if slot is None:
            os.close(self._descriptor)
            raise WordError(f"{beat_path(word)} has {len(SLOTS)} processes already: this one beats no heart")
        self._beat_page = mmap.mmap(self._descriptor, PAGE)
        self._beat_page[slot * SLOT : (slot + 1) * SLOT] = bytes(SLOT)
        whole = memoryview(self._beat_page)[slot * SLOT : (slot + 1) * SLOT]
        self.numbers = whole.cast("Q")
        self.recent = whole[RECENT_AT : RECENT_AT + 4 * RECENT].cast("I")
        self.numbers[PROCESS] = os.getpid() | (ELSEWHERE if elsewhere else 0)

    def _take(self, slot: int) -> bool:
        # Such a lock ends with the process, however it ends.
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _lock(slot, fcntl.F_WRLCK))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Leaves the slot to other processes."""
        os.close(self._descriptor)
