# SPDX-License-Identifier: Apache-2.0
"""Who is compared: the guard under each law, sharing without a guard, MuxFlow's way, and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from prolog_epilog.guard.decide import muxflow as muxflows
from prolog_epilog.guard.decide.aimd import FeedForwardAimd
from prolog_epilog.guard.decide.decider import Decider
from prolog_epilog.guard.decide.law import Law
from prolog_epilog.settings.guard_keys import GuardSettings
from tests.bench.guard import device
from tests.bench.guard.cases import Case
from tests.bench.guard.device import ACTIVITY, Linear, Model, Physics, Profile
from tests.bench.guard.figures import SPEED_AT_BOUND, Pair, numbers
from tests.bench.guard.loop import ALONE_S, bursts_of, controlled, uncontrolled

FIXED_SHARE = 0.5
"""What MuxFlow's ablation without SM allocation gives every guest."""
Runner = Callable[[Case], Pair]


@dataclass(frozen=True, slots=True)
class World:
    """What is known of jobs and devices."""

    model: Model
    profiles: dict[str, Profile]
    speeds: dict[tuple[str, str], float]

    @staticmethod
    def read(folder: Path) -> World:
        """From the published measurements in a folder."""
        return World(device.fitted(folder), device.profiles(folder), device.measured_speeds(folder))

    def profile(self, name: str) -> Profile:
        """A model's profile; a name that was never measured is taken for the middle of those that were."""
        if name in self.profiles:
            return self.profiles[name]
        several = list(self.profiles.values())
        return Profile(*(float(np.median([getattr(one, key) for one in several])) for key in Profile.__slots__))

    def contended(self, case: Case) -> Physics:
        """The fitted model's way to the case's measured speeds."""
        return device.Contended(case, self.model, self.profile(case.host), self.profile(case.guest))

    def sliced(self, case: Case) -> Physics:
        """The driver's time slices."""
        return device.Sliced(self.model, self.profile(case.host), self.profile(case.guest))


def mps_only(case: Case) -> Pair:
    """No guard: both run side by side all the time."""
    return numbers(case, uncontrolled(case, Linear(case), 1.0))


def slices_only(world: World) -> Runner:
    """No guard: the driver's time slices."""
    return lambda case: numbers(case, uncontrolled(case, world.sliced(case), 1.0))


def oracle(physics: Callable[[Case], Physics]) -> Runner:
    """Knows the future: the largest constant duty per phase that keeps the bound."""

    def run(case: Case) -> Pair:
        real = physics(case)
        burst = bursts_of(case)
        best = {factor: _largest(real, factor) for factor in set(burst)}
        return numbers(case, uncontrolled(case, real, np.array([best[factor] for factor in burst])))

    return run


def _largest(physics: Physics, burst: float) -> float:
    """The largest duty that keeps the bound, by bisection: harm never falls with duty."""
    if 1.0 - physics.loss(burst, 1.0) >= SPEED_AT_BOUND:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if 1.0 - physics.loss(burst, middle) >= SPEED_AT_BOUND else (low, middle)
    return low


def aimd(settings: GuardSettings, slope: float, *, service: bool = False) -> Law:
    """The guard's own law."""
    return FeedForwardAimd(settings.bound.slowdown, slope, service=service)


def guarded(
    world: World,
    settings: GuardSettings,
    physics: Callable[[Case], Physics] = Linear,
    alone_s: float = ALONE_S,
    hears: str = "steps",
    law: Callable[[], Law] | None = None,
) -> Runner:
    """The guard under the law that the settings name, or another one, and what it hears of the host."""

    def run(case: Case) -> Pair:
        host, guest = world.profile(case.host), world.profile(case.guest)
        chosen = law() if law else aimd(settings, case.predicted_slope, service=case.kind == "serving")
        decider = Decider(settings, chosen, muxflows.blind_law(ACTIVITY * host.busy), -alone_s)
        return numbers(case, controlled(case, physics(case), decider, host, guest, alone_s=alone_s, hears=hears))

    return run


def muxflow(world: World, settings: GuardSettings, *, allocates: bool) -> Runner:
    """MuxFlow's way: hosts report nothing; the guest's share by complement, or the same for everyone."""

    def run(case: Case) -> Pair:
        host, guest = world.profile(case.host), world.profile(case.guest)
        busiest = host.scaled(max(factor for *_, factor in [(0.0, 0.0, 1.0), *case.bursts])).busy
        activity = ACTIVITY * busiest if allocates else 1.0 - FIXED_SHARE - muxflows.MARGIN
        blind = muxflows.blind_law(activity)
        decider = Decider(settings, aimd(settings, 0.0), blind, -ALONE_S)
        outcome = controlled(case, Linear(case), decider, host, guest, hears="")
        return numbers(case, outcome)

    return run


def measured(world: World, cases: Sequence[Case]) -> list[Case]:
    """The cases whose models were measured, each with the mean measured speeds of its pair."""
    return [_paired(world, case, case.guest) for case in cases if (case.host, case.guest) in world.speeds]


def matched(world: World, cases: Sequence[Case]) -> list[Case]:
    """The same hosts and guests, matched anew for the largest sum of predicted guests' throughput (MuxFlow's way)."""
    names = sorted({case.guest for case in cases} | {case.host for case in cases})
    speed = {
        (host, guest): 1.0 - world.model.contended(world.profile(guest), world.profile(host))
        if (host, guest) in world.speeds
        else -1.0
        for host in names
        for guest in names
    }
    gains = np.array([[speed[host.host, guest.guest] for guest in cases] for host in cases])
    hosts, guests = linear_sum_assignment(gains, maximize=True)
    return [
        _paired(world, cases[host], cases[guest].guest)
        for host, guest in zip(hosts.tolist(), guests.tolist(), strict=True)
    ]


def _paired(world: World, case: Case, guest: str) -> Case:
    return replace(
        case, guest=guest, host_speed=world.speeds[case.host, guest], guest_speed=world.speeds[guest, case.host]
    )
