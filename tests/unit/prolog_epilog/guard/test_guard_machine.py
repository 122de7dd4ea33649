"""The device's states: who may come, who may stay, and for how long a GPU is left alone."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.guard.measure.machine import DeviceMachine, State, Transition
from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.settings.guard_keys import MachineSettings
from tests.examples import examples

CALM = DeviceSample(0.0, utilisation=0.3, sm_active=0.2, clock=1.0, memory=0.4)
BUSY = DeviceSample(0.0, utilisation=0.97, sm_active=0.7, clock=1.0, memory=0.4)
FULL = DeviceSample(0.0, utilisation=0.3, sm_active=0.2, clock=1.0, memory=0.97)
HOT = DeviceSample(0.0, utilisation=0.9, sm_active=0.5, clock=0.6, held_back=True, memory=0.4)
IDLE_CLOCK = DeviceSample(0.0, utilisation=0.0, sm_active=0.0, clock=0.2, memory=0.1)


class Clock:
    """A machine that is fed once a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machine = DeviceMachine(MachineSettings(), 0.0)
        self.seen: list[Transition] = []

    def feed(self, sample: DeviceSample, seconds: int, *, heartbeat: bool = False) -> State:
        for _ in range(seconds):
            self.now += 1.0
            self.note(self.machine.sample(self.now, sample, heartbeat=heartbeat))
        return self.machine.state

    def note(self, transition: Transition | None) -> None:
        if transition is not None:
            self.seen.append(transition)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def healthy(clock: Clock) -> Clock:
    assert clock.feed(CALM, 61) is State.HEALTHY
    return clock


def test_a_guest_is_admitted_after_a_minute_of_health(clock: Clock) -> None:
    assert clock.feed(CALM, 60) is State.INIT
    assert not clock.machine.admits
    clock.feed(CALM, 1)

    assert clock.machine.admits


def test_the_minute_starts_anew_with_each_bad_sample(clock: Clock) -> None:
    clock.feed(CALM, 50)
    clock.feed(BUSY, 1)

    assert clock.feed(CALM, 60) is State.INIT


def test_a_busy_moment_does_not_end_health_but_five_seconds_do(healthy: Clock) -> None:
    assert healthy.feed(BUSY, 5) is State.HEALTHY
    assert healthy.feed(BUSY, 1) is State.UNHEALTHY
    assert healthy.machine.keeps
    assert not healthy.machine.admits


def test_a_busy_gpu_whose_host_reports_its_steps_stays_healthy(healthy: Clock) -> None:
    assert healthy.feed(BUSY, 60, heartbeat=True) is State.HEALTHY


@pytest.mark.parametrize("sample", [FULL, HOT], ids=["memory", "heat"])
def test_over_the_limit_the_guest_goes_even_with_a_heartbeat(healthy: Clock, sample: DeviceSample) -> None:
    healthy.feed(sample, 3, heartbeat=True)

    assert healthy.machine.state is State.OVERLIMIT
    assert not healthy.machine.keeps
    assert healthy.seen[-1].cause


def test_a_low_clock_of_an_idle_gpu_is_no_harm(healthy: Clock) -> None:
    assert healthy.feed(IDLE_CLOCK, 100) is State.HEALTHY


def times_out(clock: Clock) -> float:
    """How long a GPU stays over its limit once the cause is gone."""
    assert clock.feed(FULL, 3) is State.OVERLIMIT
    since = clock.now
    while clock.feed(CALM, 1) is State.OVERLIMIT:
        pass
    return clock.now - since


def test_cool_down_grows_and_is_forgiven(healthy: Clock) -> None:
    assert [times_out(healthy) for _ in range(3)] == [60.0, 120.0, 240.0]
    healthy.feed(CALM, 3 * 3600 + 60)

    assert times_out(healthy) == 60.0


def test_cool_down_has_an_end(healthy: Clock) -> None:
    assert [times_out(healthy) for _ in range(8)][-1] == 3600.0


def test_a_fault_disables_until_it_is_repaired(healthy: Clock) -> None:
    healthy.note(healthy.machine.fault(healthy.now, "Xid 79"))

    assert healthy.feed(CALM, 300) is State.DISABLED
    healthy.note(healthy.machine.repaired(healthy.now))
    assert healthy.machine.state is State.INIT
    assert healthy.feed(CALM, 61) is State.HEALTHY
    assert [one.cause for one in healthy.seen[-3:-1]] == ["Xid 79", "repaired"]


def test_silence_disables_and_samples_bring_it_back_through_init(healthy: Clock) -> None:
    assert healthy.machine.no_sample(healthy.now + 15.0) is None
    assert healthy.machine.no_sample(healthy.now + 16.0) is not None
    healthy.now += 20.0

    assert healthy.feed(CALM, 1) is State.INIT
    assert healthy.feed(CALM, 61) is State.HEALTHY


def test_metrics_that_the_device_lacks_are_judged_by_nobody(clock: Clock) -> None:
    assert clock.feed(DeviceSample(0.0), 61) is State.HEALTHY


fraction = st.none() | st.floats(0.0, 1.0)
samples = st.builds(
    DeviceSample,
    st.just(0.0),
    utilisation=fraction,
    sm_active=fraction,
    clock=fraction,
    held_back=st.booleans(),
    memory=fraction,
)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(samples, st.integers(1, 90), st.booleans()), max_size=12))
def test_only_a_minute_of_health_ever_admits(fed: list[tuple[DeviceSample, int, bool]]) -> None:
    clock = Clock()
    allowed: dict[State, Callable[[State], bool]] = {
        State.INIT: lambda after: after in (State.HEALTHY, State.OVERLIMIT),
        State.HEALTHY: lambda after: after in (State.UNHEALTHY, State.OVERLIMIT),
        State.UNHEALTHY: lambda after: after in (State.HEALTHY, State.OVERLIMIT),
        State.OVERLIMIT: lambda after: after is State.UNHEALTHY,
    }
    for sample, seconds, heartbeat in fed:
        clock.feed(sample, seconds, heartbeat=heartbeat)

    left = 0.0
    for one in clock.seen:
        assert allowed[one.before](one.after)
        assert one.after is not State.HEALTHY or one.at - left >= MachineSettings().admit_s
        left = one.at


@pytest.mark.parametrize("pattern", [(3, 1), (2, 1), (3, 2)])
def test_a_guest_that_lets_go_for_a_moment_now_and_then_goes_all_the_same(
    healthy: Clock, pattern: tuple[int, int]
) -> None:
    over, calm = pattern
    for _ in range(20):
        healthy.feed(FULL, over)
        healthy.feed(CALM, calm)

    assert State.OVERLIMIT in {one.after for one in healthy.seen}


def test_a_peak_now_and_then_sends_nobody_away(healthy: Clock) -> None:
    for _ in range(50):
        healthy.feed(FULL, 1)
        healthy.feed(CALM, 2)

    assert healthy.machine.state is State.HEALTHY
