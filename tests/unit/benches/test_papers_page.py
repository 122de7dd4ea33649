# SPDX-License-Identifier: Apache-2.0
"""The papers' headlines beside ours: each figure of ours on that page is that of its table."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.bench.results_tables import page, table

PAPERS = page("papers.md").text
DECISION = page("../decisions/017-published-systems.md").text


def day() -> Iterator[str]:
    run = table("sharing-day")
    for words, name in (
        ("time with kernels", "utilisation"),
        ("active multiprocessors", "activity"),
        ("memory in use", "memory"),
    ):
        before, after = f"muxflow_{name}_before", f"muxflow_{name}_after"
        theirs = f"{run.peer(before):.0f} → {run.peer(after):.0f} %"
        yield f"| {words} | {theirs} | {run.value(before):.0f} → {run.value(after):.0f} % |"
    services, trainings = (
        run.value(f"{fleet}_work_all") / run.value(f"{fleet}_work_least_loaded") for fleet in ("muxflow", "philly")
    )
    yield f"{services:.2f} beside services and {trainings:.2f} beside trainings"
    yield f"up to {run.peer('muxflow_oversold'):.0f} % | {run.value('muxflow_oversold'):.0f} %"
    yield f"on idle GPUs {run.value('idle_oversold'):.0f} %"
    mean, worst = run.value("muxflow_host_slowdown_mean"), run.value("muxflow_host_slowdown_p99")
    yield f"{mean:.1f} % on average, {worst:.1f} % in the worst hundredth of the minutes"
    gains = [run.value(f"{fleet}_{what}_gain") for what in ("memory", "compute") for fleet in ("muxflow", "philly")]
    yield f"+ {gains[0]:.0f} points beside services, + {gains[1]:.0f} beside trainings"
    yield f"+ {gains[2]:.0f} and + {gains[3]:.0f} points"


def guard() -> Iterator[str]:
    run = table("guard")
    yield f"0.49 of the oracle's work and {100 * run.value('muxflow_services_kept'):.0f} % of the services"
    assert round(run.value("muxflow_guest_share"), 2) == 0.49
    yield f"on the same pairs, {run.peer('muxflow_guest_share'):.2f} and all"
    assert run.peer("muxflow_services_kept") == 1.0
    yield (
        f"{run.value('antman_guest_share'):.3f} of the oracle's guest work under AntMan's law, "
        f"{run.peer('antman_guest_share'):.3f} under Berth's"
    )
    yield f"services kept {run.value('antman_services_kept'):.3f} and {run.peer('antman_services_kept'):.3f}"
    yield f"{100 * run.value('services_kept'):.1f} % of services keep their p99"


def philly() -> Iterator[str]:
    run = table("philly")
    hours = {
        name: float(one[f"{name}_h"].partition(" ")[0])
        for one in (dict(zip(run.columns, row, strict=True)) for row in run.rows)
        if (one["scenario"], one["policy"]) == ("week", "berth")
        for name in ("fragmentation", "capacity", "priority")
    }
    whole = sum(hours.values())
    yield f"{100 * hours['fragmentation'] / whole:.1f} % of the hours"
    yield f"({100 * hours['capacity'] / whole:.0f} % of the hours)"
    run = table("retry")
    yield f"{100 - 100 * run.value('adaptive_lost_h') / run.value('fixed_lost_h'):.0f} % of the GPU hours that failing"


def pal() -> Iterator[str]:
    cells = {tuple(one[:2]): float(one[2].partition(" ")[0]) for one in page("pal.md").rows("", "", "as they are")}

    def less(what: str, policy: str) -> str:
        return f"- {100 * (1 - cells[what, f'{policy} over packed-sticky']):.1f} %"

    yield f"PAL's policy in our simulator {less('mean time', 'pal')}, Berth {less('mean time', 'berth')}"
    yield f"PAL's policy {less('makespan', 'pal')}, Berth {less('makespan', 'berth')}"
    held = cells["GPUs held", "pal over packed-sticky"]
    useful = [cells[name, "pal over packed-sticky"] for name in ("useful GPU time until the last job ends",
                                                                 "useful part of the GPU time held")]  # fmt: skip
    yield f"+ {100 * held - 100:.1f} % if it means GPUs held"
    yield f"+ {100 * useful[0] - 100:.0f} or + {100 * useful[1] - 100:.0f} %"


@pytest.mark.parametrize("figures", [day, guard, philly, pal], ids=lambda one: one.__name__)
def test_our_figures_are_those_of_the_tables(figures: object) -> None:
    assert callable(figures)
    assert [one for one in figures() if one not in PAPERS] == []


@pytest.mark.parametrize(
    "headline",
    ["26 → 76 %", "16 → 33 %", "42 → 48 %", "1.10 to 2.24", "up to 86 %", "+ 42 %", "+ 34 %", "within 10 ms", "- 42 %",
     "- 47 %", "+ 28 %", "70.5 %", "29.5 %", "52 %", "early stopping"],
)  # fmt: skip
def test_each_headline_has_its_reason_beside_it(headline: str) -> None:
    assert any(headline in line for line in PAPERS.splitlines() if line.count(" | ") >= 3), headline


def test_the_laws_that_the_decision_names_have_their_rows() -> None:
    run = table("guard")
    for law in re.findall(r"`(\w+)_\*`", DECISION):
        for figure in ("guest_share", "slowdown_p99", "services_kept"):
            assert run.value(f"{law}_{figure}") > 0.0
            assert run.peer(f"{law}_{figure}") > 0.0
    assert "TGS" in {row[run.columns.index("peer")] for row in run.rows}
