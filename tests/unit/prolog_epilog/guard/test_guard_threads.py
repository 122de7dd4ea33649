# SPDX-License-Identifier: Apache-2.0
"""berth-guard's own threads: none of them ends because something failed, and one that has ended is not done without."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prolog_epilog.errors import Interrupted, NodeError
from prolog_epilog.guard import program
from prolog_epilog.guard.hold import deadman
from prolog_epilog.guard.measure.device_reader import DeviceReader
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.seats import watch as watches
from prolog_epilog.guard.seats.keeper import PERIOD
from prolog_epilog.guard.tell import notice
from prolog_epilog.guard.tell.notice import GuardNotice, Payload
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.node import freezer
from prolog_epilog.tenants import arrivals
from tests.waiting import until

UNIT = Path(__file__).resolve().parents[4] / "prolog_epilog/berth-guard.service"
GUEST = Member(42, 1000, ("GPU-0",), {}, "mps")


@dataclass
class Watch:
    said: list[str] = field(default_factory=list)
    doubts: int = 0

    def doubt_arrivals(self) -> None:
        self.doubts += 1

    def say(self, sentence: str, **_: bool) -> None:
        self.said.append(sentence)


class Part:
    """Of the guard: fails as often as it is told, and ends the test when it has been called often enough."""

    def __init__(self, stop: program.Stop, fails: int, calls: int = 3) -> None:
        self.stop, self.fails, self.calls = stop, fails, calls
        self.done = 0

    def __call__(self, *_: object) -> None:
        self.done += 1
        if self.done >= self.calls:
            self.stop.heard = True
        if self.done <= self.fails:
            raise RuntimeError("nobody reckoned with this")

    turn = look = notify = __call__


class DeadMan:
    def lives(self) -> bool:
        return True


def thread(lives: bool) -> threading.Thread:
    made = threading.Thread(target=threading.Event().wait if lives else lambda: None, daemon=True)
    made.start()
    if not lives:
        made.join()
    return made


def turn(keeper: Part, watch: Watch, *, slow_lives: bool = True) -> int:
    return program._turn(watch, keeper, DeadMan(), thread(slow_lives), keeper.stop)  # type: ignore[arg-type]


def test_a_turn_that_fails_is_told_once_and_followed_by_the_next() -> None:
    keeper, watch = Part(program.Stop(), fails=2), Watch()

    assert turn(keeper, watch) == 0
    assert keeper.done == 3
    (said,) = watch.said
    assert "nobody reckoned with this" in said
    assert "test_guard_threads.py" in said


@pytest.mark.parametrize(("seconds", "doubts"), [(5.0, 0), (7.0, 1)])
def test_who_arrived_before_a_standstill_is_left_to_the_slow_thread(
    monkeypatch: pytest.MonkeyPatch, seconds: float, doubts: int
) -> None:
    keeper, watch, stood = Part(program.Stop(), fails=0, calls=5), Watch(), [0.0]
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + stood[0])
    monkeypatch.setattr(time, "sleep", lambda _: stood.__setitem__(0, seconds * (keeper.done >= 2)))

    assert turn(keeper, watch) == 0
    assert watch.doubts == doubts


def test_a_turn_begins_every_period_and_those_that_came_too_late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps are those of a machine that does nothing else; a turn takes no time but the second one."""
    stop, now, begun = program.Stop(), [1_000.0], list[float]()

    def turn_of(_: float) -> None:
        begun.append(now[0] - 1_000.0)
        now[0] += 3.5 * PERIOD if len(begun) == 2 else 0.0
        stop.heard = len(begun) == 6

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    keeper: Any = SimpleNamespace(turn=turn_of)
    assert program._turn(Watch(), keeper, DeadMan(), thread(lives=True), stop) == 0  # type: ignore[arg-type]
    assert begun == pytest.approx([PERIOD * turns for turns in (0, 1, 4.5, 4.5, 5.5, 6.5)])


@pytest.mark.parametrize(
    ("excesses", "lost", "status"), [([], None, 0), (["a"], None, 1), ([], "lost", 1), (["a", "b"], "lost", 1)]
)
def test_one_look_tells_what_is_wrong_and_its_exit_status_says_so(
    excesses: list[str], lost: str | None, status: int
) -> None:
    said = list[str]()
    actions = [SimpleNamespace(excess=SimpleNamespace(text=text)) for text in excesses]
    problem = None if lost is None else NodeError(lost)
    watch: Any = SimpleNamespace(look=lambda: actions, lost=problem, say=said.append)
    assert program._once(watch) == status
    assert [text.removesuffix(" [BERTH-910]") for text in said] == [*excesses, *([lost] if lost else [])]


@pytest.mark.parametrize(("lock", "status"), [(-1, 2), (9, 0)])
def test_a_guard_that_is_alone_begins_without_what_one_before_it_left(
    monkeypatch: pytest.MonkeyPatch, lock: int, status: int
) -> None:
    did = list[object]()

    def guards(*_: object) -> int:
        did.append("guards")
        return 0

    dead_man = SimpleNamespace(dismiss=lambda: did.append("dismissed"))
    monkeypatch.setattr(arrivals, "hold_guard", lambda _: lock)
    monkeypatch.setattr(freezer, "thaw_expired", lambda _, every: [42] if every else [])
    monkeypatch.setattr(deadman, "start", lambda _: dead_man)
    monkeypatch.setattr(program, "_loop", guards)
    monkeypatch.setattr(os, "close", did.append)
    watch: Any = SimpleNamespace(
        paths=None,
        say=lambda said: did.append(said.split(" ")[1]),
        attempt=lambda step: step(),
        forget_arrivals=lambda: did.append("arrivals forgotten"),
    )
    settings: Any = None
    assert program._guard(watch, settings, NoticeOptions(())) == status
    alone = ["42", "arrivals forgotten", "guards", "dismissed", lock]
    assert did == (alone if lock > 0 else ["berth-guard"])


def test_work_that_a_signal_interrupts_ends_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM came while a program ran: the main thread is told it again."""
    sent = list[tuple[int, int]]()

    def run(_: float) -> None:
        raise Interrupted("scontrol was ended")

    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    work: Any = SimpleNamespace(run=run)
    program._do_slow_work(work, 1.0)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_without_its_slow_thread_the_guard_begins_anew() -> None:
    keeper, watch = Part(program.Stop(), fails=0, calls=100), Watch()

    assert turn(keeper, watch, slow_lives=False) == 1
    assert "begins anew" in watch.said[0]


def test_a_slow_thread_that_ends_because_the_guard_ends_is_nothing_to_tell() -> None:
    """The signal that ends the guard may come in the middle of a turn, and the slow thread may be the first to go."""
    keeper, watch = Part(program.Stop(), fails=0, calls=1), Watch()

    assert turn(keeper, watch, slow_lives=False) == 0
    assert watch.said == []


def slow_work(say: Callable[[str], None], **more: Any) -> SlowWork:
    def no_folder(_: Member) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/sys/fs/cgroup/step_0")

    return SlowWork(more.pop("slurm", None), NoticeOptions(("ctl",)), say, no_folder, lambda *_: True)


def test_work_that_fails_does_not_take_the_next_piece_along() -> None:
    said: list[str] = []
    made = slow_work(said.append)
    done = made.evict(GUEST, GuardNotice("n1", 3, "healthy", "evict", 42), lives=True)
    told: list[str] = []

    def tell(_options: NoticeOptions, one: Payload) -> bool:
        told.append(one.text)
        return True

    made.tell = tell
    made.notify(GuardNotice("n1", 3, "healthy"))

    made.run(0.0)
    made.run(0.0)

    assert done.is_set()
    assert len(told) == 2
    assert "/sys/fs/cgroup/step_0" in said[0]


@pytest.mark.parametrize("broken", ["step", "look", "slow work"])
def test_the_slow_thread_goes_on_whatever_fails_in_it(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(watches, "PERIOD", 0.01)
    stop, watch = program.Stop(), Watch()
    parts = {name: Part(program.Stop(), fails=2 if name == broken else 0) for name in ("step", "look", "slow work")}
    parts[broken].stop = stop
    monkeypatch.setattr(watches, "step", parts["step"])
    parts["slow work"].run = partial(slowly, parts["slow work"])  # type: ignore[attr-defined]

    program._slow(watch, parts["look"], parts["slow work"], stop)  # type: ignore[arg-type]

    assert parts[broken].done == 3
    assert len(watch.said) == 1


def slowly(part: Part, _seconds: float) -> None:
    time.sleep(0.01)
    part()


def test_the_senses_go_on_when_a_look_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    device_reader = DeviceReader(said.append)
    looks = Part(program.Stop(), fails=1, calls=2)
    monkeypatch.setattr(device_reader, "_look", looks)
    monkeypatch.setattr("prolog_epilog.guard.measure.device_reader.PERIOD", 0.05)
    device_reader.start()

    until("the looks to go on", lambda: looks.stop.heard, every=0.01)
    device_reader.stop()
    assert "nobody reckoned with this" in said[0]


def test_a_name_service_that_has_gone_does_not_keep_berthd_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def answers(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        asked.append(host)
        if len(asked) > 1:
            raise socket.gaierror("the name service does not answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    monkeypatch.setattr(notice, "_addresses", {})

    first = notice._address("ctl.site", 7000)
    assert notice._address("ctl.site", 7000) == first
    assert len(asked) == 1
    monkeypatch.setattr(notice, "_KEEP_S", 0.0)
    monkeypatch.setattr(notice, "_addresses", {("ctl.site", 7000): (0.0, first)})
    assert notice._address("ctl.site", 7000) == first
    assert len(asked) == 2


def test_systemd_starts_the_guard_as_often_as_it_takes() -> None:
    assert "StartLimitIntervalSec=0\n" in UNIT.read_text().split("[Service]")[0]
