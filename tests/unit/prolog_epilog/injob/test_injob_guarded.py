# SPDX-License-Identifier: Apache-2.0
"""A program with its gate in the guard's hand: leases, long steps and naps, and both parts in one process."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prolog_epilog.guard.hold import guest_hold
from prolog_epilog.guard.hold.guest_hold import Ground, GuestHold
from prolog_epilog.guard.roll import Member
from prolog_epilog.injob import word
from prolog_epilog.injob.job import Job, open_job
from prolog_epilog.injob.word import OPEN, WordSlot, read_beats
from prolog_epilog.node import freezer
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.guard_keys import GuardSettings
from tests.fakes import cuda

pytestmark = pytest.mark.slow

UUID = "GPU-a"
LEASE_S = 0.6


class Guard:
    """As much of a guard as holds one guest: it renews its hold ten times a second while it lives."""

    def __init__(self, folder: Path) -> None:
        (self.page,) = word.create(folder / "words" / "42", [UUID], os.getuid(), os.getgid())
        guest = Member(42, os.getuid(), (UUID,), {UUID: self.page}, "time")
        self.held = GuestHold(Ground(Paths(folder), folder / "fs"), GuardSettings().action, UUID, guest)

    @contextmanager
    def living(self, duty: float) -> Iterator[None]:
        """Hold the guest to this duty for a time, then die without a word."""
        stop = threading.Event()
        self.held.hold(time.monotonic(), duty, by_freezer=False)

        def live() -> None:
            while not stop.wait(0.05):
                self.held.turn(time.monotonic())

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def obeyed(self) -> bool:
        return self.held.obeys(time.monotonic(), on_gpu=True)


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    # All at a seventh of their real length.
    monkeypatch.setattr(freezer, "LEASE_SECONDS", LEASE_S)
    monkeypatch.setattr(guest_hold, "_RENEW_S", LEASE_S / 4)
    return Guard(tmp_path)


def test_the_real_leases_outlast_the_renewals_with_room_for_a_slow_turn() -> None:
    assert guest_hold._RENEW_S + 2.0 <= freezer.LEASE_SECONDS == 4.0


@pytest.mark.parametrize("duty", [0.0, 0.02])
def test_a_nap_of_many_leases_lasts_as_long_as_the_guard_and_ends_with_its_lease(guard: Guard, duty: float) -> None:
    job = Job((guard.page,))
    job.ready()
    job.step(0.1)
    ended: list[float] = []

    def program() -> None:
        time.sleep(0.2)
        # At a duty of 2 % this step owes a nap of ten seconds.
        job.step()
        ended.append(time.monotonic())

    with guard.living(duty):
        job.gate() if duty else None
        thread = threading.Thread(target=program)
        thread.start()
        time.sleep(0.2 + 4 * LEASE_S)
        assert not ended
        # It is seen at its nap's begin, not only once that is over.
        assert read_beats(guard.page)[0].epoch == guard.held.epoch
        assert guard.obeyed()
        died = time.monotonic()
    thread.join(20)

    assert ended
    assert ended[0] - died < LEASE_S + 4.0
    assert job.duty() == OPEN


def test_an_order_that_came_within_a_long_step_stands_at_its_end(guard: Guard) -> None:
    job = Job((guard.page,))
    job.ready()
    began = time.monotonic()
    with guard.living(0.5):
        # The step hears nothing of three leases, each of which was renewed.
        time.sleep(3 * LEASE_S)
        job.gate()
        job.step()
        nap = read_beats(guard.page)[0].idle_ns / 1e9
        time.sleep(2 * LEASE_S)
        job.step()
        (beat,) = read_beats(guard.page)

    assert 0.0 <= nap <= time.monotonic() - began
    assert beat.idle_ns / 1e9 > LEASE_S
    assert beat.epoch == guard.held.epoch


def test_a_dead_guard_is_not_heard_at_the_end_of_a_long_step(guard: Guard) -> None:
    job = Job((guard.page,))
    job.ready()
    with guard.living(0.1):
        pass
    time.sleep(LEASE_S + 0.1)
    job.step()

    assert read_beats(guard.page)[0].idle_ns == 0


def settle(guard: Guard, duty: float) -> None:
    """An order is given, and the time for the queued work is over."""
    guard.held.hold(time.monotonic(), duty, by_freezer=False)
    guard.obeyed()
    time.sleep(0.2)
    guard.obeyed()


def test_a_program_that_only_loads_its_model_has_a_gate_and_obeys(guard: Guard) -> None:
    settle(guard, 0.0)
    assert not guard.obeyed()

    Job((guard.page,)).appear()

    assert guard.obeyed()
    assert not read_beats(guard.page)[0].ready


def test_a_program_that_never_ends_a_step_shows_that_it_naps(guard: Guard) -> None:
    job = Job((guard.page,))
    with guard.living(0.0):
        threading.Thread(target=job.gate).start()
        until = time.monotonic() + 10
        while not read_beats(guard.page) and time.monotonic() < until:
            time.sleep(0.01)
        assert read_beats(guard.page)[0].epoch == guard.held.epoch


@pytest.mark.parametrize(("since", "in_a_step"), [(0.0, True), (0.39, True), (0.41, False)])
def test_a_program_computes_a_step_for_twice_as_long_as_its_steps_take(
    guard: Guard, since: float, in_a_step: bool
) -> None:
    slot = WordSlot(guard.page)
    slot.numbers[word.AT] = 10 * 10**9
    slot.numbers[word.STEPS], slot.numbers[word.STEP_NS] = 5, 10**9
    (beat,) = read_beats(guard.page)

    assert guest_hold._is_in_a_step(10.0 + since, beat) is in_a_step
    slot.numbers[word.PROCESS] |= word.LIBRARY
    assert not guest_hold._is_in_a_step(10.0, read_beats(guard.page)[0]), "the library gates within a step"


def test_of_a_job_on_several_gpus_nobody_guesses_the_place(tmp_path: Path) -> None:
    words = word.create(tmp_path / "42", ["GPU-a", "GPU-b"], os.getuid(), os.getgid())

    Job(words).appear()

    assert read_beats(words[0]) == read_beats(words[1]) == ()


def test_of_a_process_with_both_parts_the_library_is_the_gate(guard: Guard) -> None:
    hooks = WordSlot(guard.page, elsewhere=True)
    library = WordSlot(guard.page)
    library.numbers[word.PROCESS] |= word.LIBRARY
    settle(guard, 0.5)

    # Gated, it ends steps all the same, of which its hooks tell.
    hooks.numbers[word.AT] = time.monotonic_ns()
    hooks.numbers[word.STEP_NS] += 10**9
    hooks.numbers[word.STEPS] += 5
    library.numbers[word.LAUNCHES] += 500
    library.numbers[word.IDLE_NS] += 10**9
    assert [beat.elsewhere for beat in read_beats(guard.page)] == [True, False]
    assert guard.obeyed()

    settle(guard, 0.4)
    library.numbers[word.LAUNCHES] += 500
    assert not guard.obeyed()


def test_the_library_is_only_counted_on_where_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = word.create(tmp_path / "42", [UUID], os.getuid(), os.getgid())
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/berth/libberth_injob.so")
    assert not Job((made,)).gated_elsewhere

    code = "from prolog_epilog.injob.job import Job\nimport json\nprint(json.dumps([Job(()).gated_elsewhere]))"
    assert json.loads(cuda.run(code, str(made))) == [True]


def test_off_is_off_in_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = word.create(tmp_path / "42", [cuda.uuid(0)], os.getuid(), os.getgid())
    word.OrderPage(made).give(0, quota=1, lease_s=60)
    monkeypatch.setenv("BERTH_WORD", str(made))
    monkeypatch.setenv("BERTH_INJOB", "off")

    job = open_job()
    job.gate()
    job.step(1.0)
    assert "BERTH_INJOB is off" in job.why
    code = """
Context()
work = kernel(0)
print(ALLOCATIONS["cuMemAlloc_v2"](60)[0], call("cuLaunchKernel", work, *[1] * 6, 0, None, None, None))
"""
    assert cuda.run(code, str(made), BERTH_INJOB="off").split() == ["0", "0"]
    assert read_beats(made) == ()
