# SPDX-License-Identifier: Apache-2.0
"""The gate of the benchmarks tells what is beyond the band, and nothing else."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.bench import gate
from tests.bench.gate import (
    LESS,
    MORE,
    PARTS,
    BrokenPartError,
    Kept,
    Part,
    better_of,
    beyond,
    kept_of,
    measured,
    read,
    write,
)

TIME = Kept(1.0, LESS, "time")


def told(unit: str, value: float = 1.0, must: str = "", ratio: float | None = None) -> dict[str, object]:
    return {"value": value, "unit": unit, "must": must, "ratio": ratio}


def test_a_figure_within_the_band_is_no_failure() -> None:
    for value in (1.5, 0.1):
        assert beyond({"plan pass": Kept(value, LESS, "time")}, {"plan pass": TIME}, ["plan"]) == []


def test_a_figure_beyond_the_band_is_named_with_both_values() -> None:
    (line,) = beyond({"plan pass": Kept(1.6, LESS, "time")}, {"plan pass": TIME}, ["plan"])
    assert line == "plan pass: 1.6000, and may be 1.5000 at the worst (1.0000 was kept)"


def test_what_has_to_be_more_fails_where_it_is_less() -> None:
    kept = {"packing given": Kept(95.0, MORE, "as it is")}
    assert beyond({"packing given": Kept(99.0, MORE, "as it is")}, kept, ["packing"]) == []
    assert beyond({"packing given": Kept(91.0, MORE, "as it is")}, kept, ["packing"]) == []
    assert len(beyond({"packing given": Kept(90.0, MORE, "as it is")}, kept, ["packing"])) == 1


def test_a_part_of_nothing_may_become_little() -> None:
    kept = {"guard harmed": Kept(0.0, LESS, "as it is")}
    assert beyond({"guard harmed": Kept(0.004, LESS, "as it is")}, kept, ["guard"]) == []
    assert len(beyond({"guard harmed": Kept(0.006, LESS, "as it is")}, kept, ["guard"])) == 1


def test_a_figure_that_one_side_lacks_is_a_failure() -> None:
    assert len(beyond({"plan pass": TIME}, {"plan notice": TIME}, ["plan"])) == 2


def test_the_figures_of_a_part_that_was_not_run_are_not_asked_for() -> None:
    assert beyond({"plan pass": TIME}, {"plan pass": TIME, "hook one": TIME}, ["plan"]) == []


def test_a_time_is_told_by_its_peer_else_by_fixed_work() -> None:
    found = kept_of("node", {"alone_ms": told("ms of CPU", 8.0), "beside_ms": told("ms", 8.0, ratio=3.0)}, 4.0)
    assert found == {"node alone_ms": Kept(2.0, LESS, "time"), "node beside_ms": Kept(3.0, LESS, "time")}


def test_what_asks_for_nothing_and_the_slowest_of_few_rounds_are_left_out() -> None:
    figures = {"of_peers": told("%"), "event_p99_ms": told("ms"), "notes": {"machine": "here"}}
    assert kept_of("plan", figures, 1.0) == {}


def test_quality_keeps_the_way_that_is_better() -> None:
    found = kept_of("guard", {"harm": told("of windows", 0.04, "<= 0.05"), "share": told("", 0.9, ">= 0.6")}, 1.0)
    assert [one.better for one in found.values()] == [LESS, MORE]
    assert kept_of("topology", {"rss": told("MB", 9.0)}, 1.0) == {"topology rss": Kept(9.0, LESS, "MB")}


def test_of_what_hangs_on_the_clock_only_times_memory_and_rates_are_compared() -> None:
    figures = {"rate_vs_echo": told("", 0.8, ">= 0.9"), "duty_error": told("points", 0.1, "<= 2")}
    kept = kept_of("hook", figures, 1.0, timed=True)
    assert kept == {"hook rate_vs_echo": Kept(0.8, MORE, "rate")}
    assert beyond({"hook rate_vs_echo": Kept(0.65, MORE, "rate")}, kept, ["hook"]) == []
    assert len(beyond({"hook rate_vs_echo": Kept(0.63, MORE, "rate")}, kept, ["hook"])) == 1


def test_of_two_rounds_the_better_one_counts() -> None:
    first = {"a t": Kept(2.0, LESS, "time"), "a q": Kept(0.8, MORE, "as it is")}
    second = {"a t": Kept(1.0, LESS, "time"), "a q": Kept(0.7, MORE, "as it is"), "b t": TIME}
    assert better_of(first, second) == {"a t": Kept(1.0, LESS, "time"), "a q": first["a q"], "b t": TIME}


def test_a_part_that_leaves_no_figures_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_DATA", "/nowhere")
    found, problem = measured(Part("packing", "packing --seeds 1"))
    assert found == {}
    assert problem.startswith("packing: left out: ")


def test_a_part_that_fails_is_not_left_out() -> None:
    with pytest.raises(BrokenPartError, match="packing: ended with 2: "):
        measured(Part("packing", "packing --no-such-word"))


def test_a_part_is_measured_beside_fixed_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gate, "naive", lambda: 2.0)
    found, problem = measured(Part("stragglers", "stragglers --cases 2"))
    assert problem == ""
    assert found["stragglers false_alarms"].better == LESS
    assert not (tmp_path / "stragglers.json").exists()


def test_each_part_is_a_benchmark() -> None:
    for part in PARTS:
        assert importlib.util.find_spec(f"tests.bench.{part.words.split()[0]}"), part.name


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    write({"plan pass": TIME}, tmp_path / "kept.json")
    assert read(tmp_path / "kept.json") == {"plan pass": TIME}
    assert json.loads((tmp_path / "kept.json").read_text())["made"]["release"]


def test_the_baseline_has_figures_of_each_part() -> None:
    assert {name.split(" ")[0] for name in read()} == {"plan", *(part.name for part in PARTS)}
