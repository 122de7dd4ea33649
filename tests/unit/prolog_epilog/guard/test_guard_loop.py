# SPDX-License-Identifier: Apache-2.0
"""The benchmark's closed loop itself: physics as the cases say, readings as late as they say, and the guard in it."""

import json
from pathlib import Path

import numpy as np
import pytest

from prolog_epilog.guard.decide.aimd import FeedForwardAimd
from prolog_epilog.guard.decide.decider import Decider
from prolog_epilog.guard.decide.law import GuardReading
from prolog_epilog.guard.decide.muxflow import blind_law
from prolog_epilog.settings.guard_keys import GuardSettings
from tests.bench.guard import systems
from tests.bench.guard.cases import DATA, Case, read
from tests.bench.guard.device import Linear, Model, Profile
from tests.bench.guard.figures import numbers, summary
from tests.bench.guard.laws.fixed import Fixed
from tests.bench.guard.loop import controlled, uncontrolled

CASE = Case("A", "B", "training", 0.5, 0.01, 0.8, 0.9, 0.5, ((100.0, 130.0, 3.0), (300.0, 304.0, 2.0)), 7)
HOST, GUEST = Profile(0.6, 0.3, 4000.0), Profile(0.5, 0.2, 4000.0)
WORLD = systems.World(Model((0.1, 0.1, 0.0, 0.5, 0.0), 1.27, 2.3, 0.0, 0.0, 0.0, 0), {"A": HOST, "B": GUEST}, {})


def decider(law: str = "aimd", *, alone_s: float = 61.0) -> Decider:
    chosen = FeedForwardAimd(0.05, 0.2) if law == "aimd" else Fixed(1.0)
    return Decider(GuardSettings(), chosen, blind_law(0.4), -alone_s)


def test_without_a_guard_harm_is_slope_times_burst() -> None:
    outcome = uncontrolled(CASE, Linear(CASE), 1.0)

    assert outcome.speed[0] == pytest.approx(0.8)
    assert outcome.speed[1100] == pytest.approx(0.4)
    assert outcome.gain.mean() == pytest.approx(0.9)
    assert outcome.latencies.mean() == pytest.approx(0.5 * 6000 / outcome.speed.sum(), rel=0.01)


def test_a_host_beside_a_guest_at_rest_is_as_fast_as_alone() -> None:
    outcome = uncontrolled(CASE, Linear(CASE), 0.0)

    np.testing.assert_allclose(outcome.latencies, outcome.alone, rtol=1e-9)


def test_the_oracle_spends_the_bound_and_no_more() -> None:
    pair = systems.oracle(Linear)(CASE)

    assert pair.windows.max() == pytest.approx(0.05, abs=1e-6)
    assert pair.windows.min() == pytest.approx(0.05, abs=1e-6)


class Listener(Fixed):
    """Keeps a duty and notes how old the host's steps are when they are heard."""

    def __init__(self, duty: float) -> None:
        super().__init__(duty)
        self.ages: list[float] = []
        self.errors: list[float] = []

    def duty(self, reading: GuardReading) -> float:
        if reading.beat is not None:
            self.ages.append(reading.now - reading.beat.at)
            self.errors.append(reading.loss - 0.2 * reading.duty)
        return super().duty(reading)


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.0])
def test_nothing_is_heard_before_its_time(delay: float) -> None:
    case = Case("A", "B", "training", 0.05, 0.005, 0.8, 0.9, delay, (), 7)
    listener = Listener(0.5)
    controlled(case, Linear(case), Decider(GuardSettings(), listener, Fixed(0.0), -61.0), HOST, GUEST)

    assert delay <= min(listener.ages) <= max(listener.ages) <= delay + 0.2 + 1e-9
    assert abs(np.mean(listener.errors)) < 0.002  # the guard's record of duties fits what the host felt


def test_the_guard_keeps_the_bound_and_reacts_in_time() -> None:
    pair = numbers(CASE, controlled(CASE, Linear(CASE), decider(), HOST, GUEST))

    assert np.quantile(pair.windows, 0.95) < 0.05
    assert pair.windows.mean() < 0.035
    assert all(took <= 2.0 for took, _ in pair.reactions)
    assert pair.gain > 0.45 * systems.oracle(Linear)(CASE).gain


def test_a_pair_without_harm_is_left_alone() -> None:
    case = Case("A", "B", "serving", 0.1, 0.03, 1.0, 0.95, 1.0, CASE.bursts, 7)
    pair = numbers(case, controlled(case, Linear(case), decider(), HOST, GUEST))

    assert pair.duty > 0.97
    assert pair.late_ms == pytest.approx(0.0, abs=1e-6)


def test_an_owner_that_comes_to_a_guest_is_measured_with_the_gate_shut() -> None:
    outcome = controlled(CASE, Linear(CASE), decider(alone_s=0.0), HOST, GUEST, alone_s=0.0)

    assert not outcome.duty[:40].any()
    assert outcome.duty[80:].any()


def test_a_host_that_only_launches_is_protected_and_its_guest_pays() -> None:
    hears = {words: systems.guarded(WORLD, GuardSettings(), hears=words)(CASE) for words in ("steps", "launches", "")}
    worst = {words: float(np.quantile(pair.windows, 0.95)) for words, pair in hears.items()}

    assert max(worst["steps"], worst["launches"]) < 0.05 < worst[""]
    assert 0.4 * hears["steps"].gain < hears["launches"].gain < hears["steps"].gain


def test_muxflow_sees_no_heartbeat() -> None:
    pair = systems.muxflow(WORLD, GuardSettings(), allocates=True)(CASE)

    # The host's burst fills the GPU, with 62 % of its SMs active: that and a margin of 10 % are kept from the guest.
    assert pair.duty == pytest.approx(0.28, abs=0.01)
    assert pair.windows.max() > 0.05


def test_the_summary_names_who_was_harmed_and_who_was_served() -> None:
    service = Case("A", "B", "serving", 0.5, 0.005, 0.8, 0.9, 0.0, (), 7)
    harmed = [systems.mps_only(one) for one in (CASE, service)]
    best = [systems.oracle(Linear)(one) for one in (CASE, service)]
    told = summary(harmed, best)

    assert told.slowdown_p99 > 0.2
    assert told.guest_share_harmed > 1.0
    assert told.services_kept == 0.0
    assert summary(best, best).services_kept == 1.0


def test_matching_moves_guests_to_where_they_run_best() -> None:
    speeds = {("H1", "light"): 1.0, ("light", "H1"): 1.0, ("H2", "light"): 1.0, ("light", "H2"): 1.0}
    speeds |= {("H1", "heavy"): 0.7, ("heavy", "H1"): 0.6, ("H2", "heavy"): 0.9, ("heavy", "H2"): 0.9}
    profiles = {"H1": Profile(0.9, 0.9, 1.0), "H2": Profile(0.2, 0.1, 1.0)}
    profiles |= {"light": Profile(0.1, 0.0, 1.0), "heavy": Profile(0.9, 0.8, 1.0)}
    world = systems.World(WORLD.model, profiles, speeds)
    cases = [Case("H1", "heavy", "training", 1.0, 0.0, 0.7, 0.6, 0.0, (), 1), CASE]
    cases[1] = Case("H2", "light", "training", 1.0, 0.0, 1.0, 1.0, 0.0, (), 2)

    assert [(one.host, one.guest, one.host_speed) for one in systems.matched(world, cases)] == [
        ("H1", "light", 1.0),
        ("H2", "heavy", 0.9),
    ]


def test_cases_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    fields = {name: getattr(CASE, name) for name in Case.__dataclass_fields__}
    path.write_text(json.dumps({"case": 0, **fields}) + "\n")

    assert read(path) == [CASE]


@pytest.mark.published
@pytest.mark.skipif(not (DATA / "traces" / "colocation").is_dir(), reason="BERTH_DATA names no folder of traces")
def test_the_fitted_model_beats_the_mean_on_pairs_that_it_never_saw() -> None:
    world = systems.World.read(DATA / "traces" / "colocation")

    assert world.model.pairs > 200
    assert world.model.error < 0.8 * world.model.error_of_mean
    assert world.contended(Case("VGG", "LSTM", "training", 1.0, 0.0, 0.8, 0.9, 0.0, (), 1)).loss(
        1.0, 1.0
    ) == pytest.approx(0.2)
