# SPDX-License-Identifier: Apache-2.0
"""The chart layer: the same figures give the same bytes, and a page can hold several pictures."""

import doctest
import re
from xml.etree import ElementTree

import pytest

from policy.report import charts
from tests.bench import results_charts

ROWS = {"1 GPU": {"capacity": 3.0, "priority": 2.5, "never": 0.0}, "8 GPUs <a>": {"capacity": 1_234.4}}
MARK = results_charts.Mark(1.0, "plain Slurm")
pytestmark = pytest.mark.skipif(not charts.available(), reason="matplotlib is not installed")


def words(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own picture
    return [one.text or "" for one in root.iter() if one.tag.endswith("}text")]


def test_pictures_are_the_same_each_time() -> None:
    assert charts.bars("Waits", ROWS, "h") == charts.bars("Waits", ROWS, "h")


def test_bars_have_names_sums_and_a_legend_without_empty_parts() -> None:
    shown = words(charts.bars("Waits", ROWS, "hours"))

    assert {"1 GPU", "8 GPUs <a>", "capacity", "priority", "hours"} <= set(shown)
    assert {word.strip() for word in shown} >= {"5.5", "1,234"}
    assert "never" not in shown


def test_lines_have_axes_and_a_legend() -> None:
    series = [charts.Series(name, [0.1, 10.0], [0.0, 1.0], charts.colour(place)) for place, name in enumerate("ab")]

    shown = words(charts.lines("Times", series, "hours", "share", y_high=1, log_x=True))

    assert {"a", "b", "hours", "share", "0.1", "10"} <= set(shown)


def test_groups_and_intervals_say_each_value() -> None:
    groups = words(
        results_charts.groups("Ratios", {"24.11": {"wait": 0.6, "end": 0.82}, "26.05": {"wait": 0.61}}, "ratio")
    )
    points = words(
        results_charts.intervals("Gains", {"flat": (0.94, 0.91, 0.97), "pods": (0.88, 0.83, 0.93)}, "ratio", MARK)
    )

    assert {word.strip() for word in groups} >= {"24.11", "26.05", "0.6", "0.82", "0.61", "wait", "end"}
    assert "dashed: plain Slurm" in points
    assert {word.strip() for word in points} >= {"flat", "pods", "0.94", "0.88"}


def test_growing_costs_have_a_line_to_compare_with() -> None:
    shown = words(
        results_charts.growth("Costs", {"a pass": {1.0: 1.0, 100.0: 20.0}, "memory": {1.0: 1.0, 10.0: 2.0}}, "x", "y")
    )

    assert {"a pass", "memory", "as the size", "x", "y", "100"} <= {word.strip() for word in shown}


def test_pictures_of_one_page_share_no_ids_and_refer_to_nothing() -> None:
    page = charts.bars("Waits", ROWS, "h") + charts.lines("Held", [charts.Series("x", [0, 1], [1, 2])], "h", "GPUs")

    assert re.findall(r'\bid="|url\(|href=', page) == []


def test_in_a_page_the_text_takes_the_colour_of_the_page() -> None:
    assert "currentColor" in charts.bars("Waits", ROWS, "h")
    assert "currentColor" not in charts.bars("Waits", ROWS, "h", alone=True)


def test_examples() -> None:
    assert doctest.testmod(charts, raise_on_error=True).attempted
