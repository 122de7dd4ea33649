# SPDX-License-Identifier: Apache-2.0
"""Each law by itself: what it answers to a host that is well, that is harmed, and that changes."""

import random
from itertools import pairwise

import pytest

from prolog_epilog.guard.decide import aimd as law_module
from prolog_epilog.guard.decide.aimd import FeedForwardAimd
from prolog_epilog.guard.decide.law import GuardReading, Law
from prolog_epilog.guard.decide.muxflow import Muxflow, blind_law, complement
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from tests.bench.guard.laws import PEERS
from tests.bench.guard.laws.antman import Antman, AntmanSettings
from tests.bench.guard.laws.pi import PiSettings, ProportionalIntegral
from tests.bench.guard.laws.tgs import Tgs, TgsSettings

NOISE = 0.01


class Host:
    """A host that loses slope x duty of its speed; it is heard without delay."""

    def __init__(
        self, law: Law, slope: float, *, noise: float = NOISE, seed: int = 1, step: float = 0.5, at_once: int = 1
    ) -> None:
        self.law, self.slope, self.noise, self.step, self.at_once = law, slope, noise, step, at_once
        self.draw = random.Random(seed)
        self.now = self.duty = 0.0
        self.slowdowns: list[float] = []
        self.duties: list[float] = []

    def run(self, seconds: float) -> float:
        """Let so much time pass; the mean duty in the second half of it."""
        begin, first = self.now, len(self.duties)
        while self.now < begin + seconds:
            pace = self.step * (1.0 + self.draw.gauss(0.0, self.noise)) / (1.0 - min(0.9, self.slope * self.duty))
            self.now += pace * self.at_once
            self.slowdowns.append(pace / self.step - 1.0)
            beat = HostBeat(self.now, self.at_once, pace * self.at_once)
            self.duty = self.law.duty(GuardReading(self.now, beat, self.step, 0.001, max(self.noise, 0.003), self.duty))
            self.duties.append(self.duty)
        late = self.duties[(first + len(self.duties)) // 2 :]
        return sum(late) / len(late)


def aimd(slope: float, *, service: bool = False) -> FeedForwardAimd:
    return FeedForwardAimd(0.05, slope, service=service)


@pytest.mark.parametrize("name", ["aimd", *PEERS])
def test_a_duty_is_a_share_of_time(name: str) -> None:
    law = PEERS[name]() if name in PEERS else aimd(0.2, service=True)
    host = Host(law, 0.3, noise=0.2)
    host.run(300.0)

    assert all(0.0 <= duty <= 1.0 for duty in host.duties)


@pytest.mark.parametrize("predicted", [0.0, 0.05, 0.3])
def test_a_host_that_no_guest_harms_is_not_throttled(predicted: float) -> None:
    assert Host(aimd(predicted), 0.0).run(300.0) > 0.98


@pytest.mark.parametrize("predicted", [0.0, 0.2, 0.6])
def test_the_bound_is_nearly_spent_and_never_broken_for_long(predicted: float) -> None:
    host = Host(aimd(predicted), 0.2)
    duty = host.run(400.0)
    windows = [sum(host.slowdowns[first : first + 20]) / 20 for first in range(20, len(host.slowdowns) - 20, 20)]

    assert 0.5 * 0.0476 / 0.2 < duty < 0.0476 / 0.2
    assert max(windows) < 0.055


def test_a_burst_is_cut_within_three_steps_and_forgotten_after_it() -> None:
    host = Host(aimd(0.1), 0.1)
    calm = host.run(200.0)
    host.slope = 0.4
    first = len(host.duties)
    host.run(2.0)
    assert min(host.duties[first : first + 3]) < 0.3 * calm
    in_burst = host.run(60.0)
    assert 0.4 * in_burst < 0.05

    host.slope = 0.1
    assert host.run(60.0) > 1.5 * in_burst


def steps_to_a_cut(seed: int) -> int:
    """Steps of 0.9 s, each 3 % longer or shorter, from a burst to twice the bound until the bound holds again."""
    law = aimd(0.2)
    host = Host(law, 0.2, noise=0.03, seed=seed, step=0.9)
    host.run(300.0)
    host.slope = 0.1 / max(host.duty, 0.1)
    for count in range(1, 40):
        host.run(0.01)
        if host.slope * host.duty <= 0.05 / 1.05:
            return count
    return 40


def test_a_host_of_long_and_noisy_steps_is_cut_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(60)
    ours = sorted(map(steps_to_a_cut, seeds))
    monkeypatch.setattr(law_module, "LONG_FALSE_ALARM_BEATS", 1e6)
    as_others = list(map(steps_to_a_cut, seeds))

    assert sum(ours) < sum(as_others)
    assert ours[len(ours) // 2] <= 2


def test_a_host_with_bursts_gets_more_reserve() -> None:
    steady, bursty = Host(aimd(0.1), 0.1), Host(aimd(0.1), 0.1)
    steady.run(200.0)
    bursty.run(100.0)
    bursty.slope = 0.4
    bursty.run(40.0)
    bursty.slope = 0.1
    bursty.run(60.0)

    assert bursty.run(40.0) < 0.88 * steady.run(40.0)


def test_a_host_that_is_heard_seldom_gets_more_reserve() -> None:
    """Where launches are counted a burst is heard at the end of a window of eight steps, and not after one."""
    given = []
    for at_once in (1, 8):
        host = Host(aimd(0.15), 0.15, step=0.2, at_once=at_once)
        host.run(120.0)
        host.slope = 0.6
        host.run(30.0)
        host.slope = 0.15
        given.append(host.run(120.0))
    assert given[1] < 0.8 * given[0]


def test_noise_alone_throttles_nobody_whom_no_burst_could_harm() -> None:
    """A false alarm each 110 s would cut the guest thirty times in an hour."""
    host = Host(aimd(0.0), 0.0)
    host.run(600.0)
    first = len(host.duties)
    host.run(3_000.0)

    assert min(host.duties[first:]) > 0.98


def test_a_service_that_was_late_too_often_pays_for_it_with_its_guest() -> None:
    duties = []
    for service in (False, True):
        host = Host(aimd(0.1, service=service), 0.1)
        for _ in range(6):
            host.slope = 0.4
            host.run(10.0)
            host.slope = 0.1
            duty = host.run(40.0)
        duties.append(duty)

    assert duties[1] < 0.8 * duties[0]


def test_one_stalled_step_is_forgotten_soon() -> None:
    """A checkpoint or a validation batch of the host is no burst."""
    host = Host(aimd(0.1), 0.1)
    before = host.run(200.0)
    host.now += 5.0
    stalled = HostBeat(host.now, 1, 5.0)
    host.duty = host.law.duty(GuardReading(host.now, stalled, 0.5, 0.001, NOISE, host.duty))
    assert host.duty < 0.1 * before  # it might have been one

    host.run(30.0)
    assert host.run(30.0) > 0.75 * before


def test_actions_are_few() -> None:
    host = Host(aimd(0.2), 0.2, noise=0.03)
    host.run(600.0)
    changes = sum(one != other for one, other in pairwise(host.duties))

    assert changes < 100


def test_tgs_profiles_before_it_gives_anything_then_starts_at_its_first_limit() -> None:
    host = Host(Tgs(TgsSettings()), 0.0, noise=0.0)
    host.run(24.0)
    assert set(host.duties) == {0.0}

    host.run(2.5)
    assert host.duty == pytest.approx(0.2)


def test_tgs_grows_by_half_in_slow_start_and_leaves_it_at_the_first_harm() -> None:
    host = Host(Tgs(TgsSettings()), 0.0, noise=0.0)
    host.run(31.0)
    assert host.duty == pytest.approx(0.3, abs=0.001)
    host.slope = 0.2  # 6 % of harm at this duty: more than the tolerance
    host.run(5.0)
    assert host.duty == pytest.approx(0.2, abs=0.001)

    host.slope = 0.0
    host.run(5.0)
    assert host.duty == pytest.approx(0.21, abs=0.001)  # smallest step of congestion avoidance


def test_antman_halves_at_harm_suspends_at_the_floor_and_climbs_in_small_steps() -> None:
    host = Host(Antman(AntmanSettings()), 0.0, noise=0.0)
    host.run(46.0)
    assert host.duty == pytest.approx(0.25)

    host.slope = 0.9
    host.run(5.5)
    assert host.duty == pytest.approx(0.125)
    host.slope = 5.0
    host.run(60.0)
    assert host.duty == 0.0


def test_pi_settles_at_its_target() -> None:
    host = Host(ProportionalIntegral(PiSettings()), 0.2, noise=0.0)
    host.run(300.0)

    assert host.slowdowns[-1] == pytest.approx(PiSettings().target, abs=0.002)


def test_muxflow_gives_what_the_host_leaves() -> None:
    assert complement(0.5) == pytest.approx(0.4)
    assert complement(0.0) == 0.9
    assert complement(1.0) == 0.1


@pytest.mark.parametrize(("held", "duty"), [(False, 0.4), (True, 1.0)])
def test_a_guest_that_mps_holds_to_what_its_host_leaves_is_not_cut_twice(held: bool, duty: float) -> None:
    law = blind_law(0.5, held=held)

    assert law.duty(GuardReading(0.0, None, 0.0, 0.0, 0.0, 0.0, None)) == pytest.approx(duty)


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (DeviceSample(0.0, utilisation=0.5, clock=1.0), 0.4),
        (DeviceSample(0.0, utilisation=0.5, clock=0.7), 0.4),  # the clock of a GPU that nobody holds back
        (DeviceSample(0.0, utilisation=0.5, clock=0.7, held_back=True), 0.02),
        (DeviceSample(0.0, utilisation=1.0, clock=1.0), 0.02),
    ],
)
def test_muxflow_holds_launches_back_when_the_device_is_over_its_set_point(sample: DeviceSample, share: float) -> None:
    law = Muxflow(0.4)
    duties = [law.duty(GuardReading(float(now), None, 0.0, 0.0, 0.0, 0.0, sample)) for now in range(100)]

    assert duties[-1] == pytest.approx(share)
