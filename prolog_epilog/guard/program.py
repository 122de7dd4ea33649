# SPDX-License-Identifier: Apache-2.0
"""The program berth-guard: protects owners from their guests, and watches every shared GPU.

It has three threads, so that what must be quick never waits for what may hang:

    main     ten times a second: heartbeats, decisions, gates, the freezer (keeper.py)
    devices  once a second: the devices, through NVML (device_reader.py)
    slow     berthd, Slurm and MPS (slow_work.py), and the audit of shared GPUs (watch.py)

One more process, the dead-man, thaws every guest when this one dies.
"""

import argparse
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType

from prolog_epilog.errors import Interrupted, NodeConfigError, NodeError
from prolog_epilog.guard import options
from prolog_epilog.guard.hold import deadman
from prolog_epilog.guard.hold.guest_hold import Ground
from prolog_epilog.guard.hold.levels import EnforcedLevels, LevelNotice
from prolog_epilog.guard.measure.device_reader import DeviceReader
from prolog_epilog.guard.measure.machine import State
from prolog_epilog.guard.mishaps import Mishaps
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.seats import watch as watches
from prolog_epilog.guard.seats.keeper import PERIOD, Keeper
from prolog_epilog.guard.seats.watch import Watch
from prolog_epilog.guard.tell import notice
from prolog_epilog.guard.tell.machine import MachineNotices
from prolog_epilog.guard.tell.notice import GuardNotice
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.looks import watch as gpu_looks
from prolog_epilog.messages import GUARD, numbered, tagged
from prolog_epilog.node import freezer, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings import config
from prolog_epilog.settings.guard_keys import GuardSettings
from prolog_epilog.tenants import arrivals, audit

_WRONG = 2
"""Exit status for errors that trying again does not mend."""


def main() -> int:
    """Runs berth-guard."""
    words = _words()
    paths = Paths(words.root)
    if words.thaw:
        for job in freezer.thaw_expired(paths, every=True):
            sys.stderr.write(f"berth-guard: job {job} is thawed [BERTH-936]\n")
        return 0
    try:
        place = words.config or config.find(os.environ)
        node, (settings, notices) = config.load(place), options.load(place)
    except NodeConfigError as problem:
        sys.stderr.write(f"berth-guard: error: {tagged(numbered(problem), GUARD)}\n")
        return _WRONG
    slurm = Scontrol(node.scontrol, os.environ.get("SLURM_CONF", ""), node.scontrol_timeout)
    watch = Watch(paths, node, slurm, audit.Judge(node.violation), processes.boot_id(paths.boot_id))
    try:
        return _once(watch) if words.once else _guard(watch, settings, notices)
    except NodeError as problem:
        watch.say(numbered(problem))
        return 1
    finally:
        watch.close()


def _words() -> argparse.Namespace:
    text = (
        "Watches the GPUs that jobs share on this node: measures owners, holds guests back, and takes back the shares "
        "of jobs that are over. Its unit starts it as root."
    )
    parser = argparse.ArgumentParser(prog="berth-guard", description=text)
    parser.add_argument("--config", metavar="FILE", help="berth.conf, where it is not beside slurm.conf")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/run/berth"),
        metavar="FOLDER",
        help="Berth's folder of this boot (default: %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="one look, then end; exit status 1 if anything is wrong")
    parser.add_argument("--thaw", action="store_true", help="thaw whom a guard that is gone left frozen, then end")
    return parser.parse_args()


def _once(watch: Watch) -> int:
    actions = watch.look()
    for action in actions:
        watch.say(action.excess.text)
    if watch.lost is not None:
        watch.say(numbered(watch.lost))
    return 1 if actions or watch.lost is not None else 0


def _guard(watch: Watch, settings: GuardSettings, notices: NoticeOptions) -> int:
    lock = arrivals.hold_guard(watch.paths)
    if lock < 0:
        watch.say("another berth-guard runs on this node; end it first")
        return _WRONG
    for job in freezer.thaw_expired(watch.paths, every=True):
        watch.say(f"job {job} was left frozen by a guard that is gone, and is thawed")
    watch.attempt(watch.forget_arrivals)
    dead_man = deadman.start(watch.paths)
    try:
        return _loop(watch, settings, notices, dead_man)
    finally:
        dead_man.dismiss()
        os.close(lock)


class Stop:
    """Tells the guard's threads to end. Takes no lock: the main thread may hold it when the signal interrupts it."""

    def __init__(self) -> None:
        self.heard = False

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Handles the signal."""
        self.heard = True


def _loop(watch: Watch, settings: GuardSettings, notices: NoticeOptions, dead_man: deadman.DeadMan) -> int:
    """Runs the guard until SIGTERM or SIGINT."""
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.hear)
    # Blocked in all threads, the signal stays pending for the thread that started the program; ignored, it would be
    # lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    device_reader = DeviceReader(watch.say)
    slow_work = SlowWork(watch.slurm, notices, lambda said: watch.say(said, again=True), watch.end_clients)
    levels = EnforcedLevels(watch.paths, partial(_tell_level, notices), watch.say)
    keeper = Keeper(
        Ground(watch.paths),
        settings,
        slow_work,
        device_reader,
        lambda said: watch.say(said, again=True),
        shares=lambda: levels.counts,
        doubted=lambda: watch.doubted,
    )
    watch.on_culprit = partial(_blame, slow_work)
    device_reader.start()
    slow = threading.Thread(target=_slow, args=(watch, levels, slow_work, stop), name="slow", daemon=True)
    slow.start()
    if settings.metrics and notices.hosts:
        looks = watch.paths, notices, partial(watch.say, again=True), lambda: stop.heard
        threading.Thread(target=gpu_looks.watch, args=looks, name="looks", daemon=True).start()
    try:
        return _turn(watch, keeper, dead_man, slow, stop)
    finally:
        stop.heard = True
        keeper.release()
        device_reader.stop()
        slow.join(2.0)


def _turn(watch: Watch, keeper: Keeper, dead_man: deadman.DeadMan, slow: threading.Thread, stop: Stop) -> int:
    mishaps, due = _mishaps(watch), time.monotonic()
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        if stop.heard:
            return 0
        now = time.monotonic()
        if now > due + arrivals.WAIT_SECONDS:
            # It stood still, and owners may have come and gone.
            watch.doubt_arrivals()
        due = max(due + PERIOD, now)
        mishaps.attempt("a turn of the guard", partial(keeper.turn, now))
        if not dead_man.lives():
            watch.say("the guard's dead-man has died: all are thawed, and the guard begins anew")
            return 1
        # Told to stop, it may end before this thread sees that.
        if not slow.is_alive() and not stop.heard:
            watch.say("the guard's slow thread has ended: no guest would be evicted, and the guard begins anew")
            return 1


def _slow(watch: Watch, levels: EnforcedLevels, slow_work: SlowWork, stop: Stop) -> None:
    mishaps, due = _mishaps(watch), time.monotonic()
    machine = MachineNotices(slow_work.notify)
    while not stop.heard:
        mishaps.attempt("slow work", partial(_do_slow_work, slow_work, due - time.monotonic()))
        now = time.monotonic()
        if now >= due:
            due = max(due + watches.PERIOD, now)
            mishaps.attempt("the audit", partial(watches.step, watch))
            mishaps.attempt("how shares are held", levels.look)
            mishaps.attempt("the node's GPUs", machine.look)


def _do_slow_work(slow_work: SlowWork, seconds: float) -> None:
    try:
        slow_work.run(seconds)
    except Interrupted:
        os.kill(os.getpid(), signal.SIGTERM)


def _mishaps(watch: Watch) -> Mishaps:
    return Mishaps(lambda said: watch.say(said, again=True))


def _tell_level(notices: NoticeOptions, one: LevelNotice) -> bool:
    """Tells berthd a level; true also if no berthd is configured."""
    return not notices.hosts or notice.tell(notices, one)


def _blame(slow_work: SlowWork, node: str, gpu: int, job: int) -> None:
    """Tells berthd whose program brought MPS down."""
    slow_work.notify(GuardNotice(node, gpu, State.UNHEALTHY.value.lower(), "fault", job))
