# SPDX-License-Identifier: Apache-2.0
"""PAL's rounds where policies do not know all."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from policy.formats.arrays import Floats
from policy.placement.registry import create
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.rounds import RoundsSettings
from tests.bench.paper.watched import RoundShowed, WatchedRounds
from tests.unit.policy.simulate.pal_rounds.test_rounds import PACKED, ROUND, fleet, job


def test_with_exact_ends_a_job_ends_when_its_work_is_done() -> None:
    jobs = [job("a", 1, 30, 250), job("b", 8, 30, 10)]

    outcome = WatchedRounds(jobs, fleet(), PACKED, RoundsSettings(ROUND), exact_end=True).run()

    assert outcome.ends["a"] == 350
    assert outcome.starts["b"] == 400


def test_jobs_progress_by_the_truth_whatever_policies_believe() -> None:
    on = fleet(1, 2, scores=[[1.0, 1.2]])
    truth = {"compute": np.array([[3.0, 1.0]])}

    outcome = WatchedRounds(
        [job("a", 1, 0, 100)], on, create("pm-first"), RoundsSettings(ROUND), truth=truth, exact_end=True
    ).run()

    assert outcome.stretches[0].gpus == (0,)
    assert outcome.ends["a"] == 300


class Notes:
    """Remembers what it was shown, and says once what to believe."""

    def __init__(self, believed: Mapping[str, Floats] | None = None) -> None:
        self.seen: list[tuple[float, Sequence[RoundShowed]]] = []
        self.believed = believed

    def observe(self, at: float, running: Sequence[RoundShowed]) -> None:
        self.seen.append((at, running))

    def scores(self, at: float) -> Mapping[str, Floats] | None:
        return self.believed if at == ROUND else None


def test_a_watch_sees_what_each_gpu_would_take_before_they_wait_for_each_other() -> None:
    on = fleet(scores=[[1.0, 1.1, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]])
    notes = Notes()

    events = (NodeEvent(0, 100, 999, 3.0),)
    WatchedRounds([job("a", 8, 0, 400)], on, PACKED, RoundsSettings(ROUND, events=events), watch=notes).run()

    (first, shown), (second, slower) = notes.seen[0], notes.seen[1]
    assert (first, second, shown[0].job) == (100, 200, "a")
    assert shown[0].times.tolist() == [1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]
    assert slower[0].times.tolist() == pytest.approx([3.0, 3.3, 3.0, 3.0, 1.0, 1.0, 1.0, 2.0])


def test_what_a_watch_sees_can_be_noisy_and_does_not_touch_progress() -> None:
    notes = Notes()

    outcome = WatchedRounds([job("a", 4, 0, 400)], fleet(), PACKED, RoundsSettings(ROUND), watch=notes, noise=0.1).run()

    times = np.concatenate([shown[0].times for _, shown in notes.seen])
    assert len(set(times.tolist())) == 16
    assert 0.03 < times.std() < 0.3
    assert outcome.ends["a"] == 400


def test_policies_believe_a_watch_from_the_next_round_on() -> None:
    on = fleet(1, 2, scores=[[1.0, 1.5]])
    notes = Notes({"compute": np.array([[1.5, 1.0]])})

    outcome = WatchedRounds([job("a", 1, 0, 300)], on, create("pm-first"), RoundsSettings(ROUND), watch=notes).run()

    assert [stretch.gpus for stretch in outcome.stretches] == [(0,), (1,)]
