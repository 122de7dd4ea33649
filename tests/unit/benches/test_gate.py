"""The gate of the benchmarks tells what is beyond the band, and nothing else."""

from __future__ import annotations

import json

from tests.bench.gate import BASELINE, beyond


def test_a_figure_within_the_band_is_no_failure() -> None:
    assert beyond({"pass": 1.4}, {"pass": 1.0}, 1.5) == []
    assert beyond({"pass": 0.1}, {"pass": 1.0}, 1.5) == []


def test_a_figure_beyond_the_band_is_named_with_both_values() -> None:
    (told,) = beyond({"pass": 1.6, "notice": 1.0}, {"pass": 1.0, "notice": 1.0}, 1.5)
    assert told == "pass: 1.6000, more than 1.5 times 1.0000"


def test_a_figure_that_one_side_lacks_is_a_failure() -> None:
    assert len(beyond({"pass": 1.0}, {"notice": 1.0})) == 2


def test_the_baseline_has_positive_ratios() -> None:
    assert all(value > 0 for value in json.loads(BASELINE.read_text()).values())
