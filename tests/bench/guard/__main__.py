# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the guard in a closed loop: CASES=FILE names other cases than the given ones.

`--pairs N` takes every k-th pair only, so that about N are left; `--jobs N` uses so many processes.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from time import perf_counter

from rich.console import Console
from rich.table import Table

from prolog_epilog.settings.guard_keys import GuardSettings
from tests.bench.guard import systems
from tests.bench.guard.cases import DATA, Case, need, path_of_cases, read
from tests.bench.guard.device import Linear
from tests.bench.guard.figures import BOUND, Pair, Summary, summary
from tests.bench.guard.laws import PEERS
from tests.bench.guard.systems import Runner, World
from tests.bench.table import Figure, at_least, at_most, report

PART = 4
"""Tables beside the first are about every fourth pair."""
LAUNCHES, NOTHING = "no heartbeat: launches are counted", "no heartbeat, no launches"
DEFAULT = "Berth: AIMD with feed-forward"
COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("slowdown p99", lambda one: f"{one.slowdown_p99:.2%}"),
    ("mean", lambda one: f"{one.slowdown_mean:.2%}"),
    ("windows over 5 %", lambda one: f"{one.windows_over:.2%}"),
    ("guest's throughput", lambda one: f"{one.gain:.3f}"),
    ("oversold GPU", lambda one: f"{one.duty:.1%}"),
    ("of the oracle's", lambda one: f"{one.guest_share:.3f}"),
    ("harmed pairs", lambda one: f"{one.guest_share_harmed:.3f}"),
    ("unharmed", lambda one: f"{one.guest_share_unharmed:.3f}"),
    ("reaction s", lambda one: f"{one.reaction_s:.1f}"),
    ("steps", lambda one: f"{one.reaction_steps:.1f}"),
    ("services kept", lambda one: f"{one.services_kept:.1%}"),
    ("actions/min", lambda one: f"{one.actions:.1f}"),
)

_running: Runner | None = None


def _one(case: Case) -> Pair:
    assert _running is not None
    return _running(case)


class Runs:
    """Runs every pair under a system, and says how long that took."""

    def __init__(self, jobs: int, console: Console) -> None:
        self._jobs = jobs
        self._console = console

    def __call__(self, name: str, runner: Runner, cases: Sequence[Case]) -> list[Pair]:
        global _running  # noqa: PLW0603 - a forked process inherits what cannot be sent to it
        began = perf_counter()
        _running = runner
        if self._jobs > 1:
            with get_context("fork").Pool(self._jobs) as pool:
                pairs = pool.map(_one, cases, chunksize=8)
        else:
            pairs = [runner(case) for case in cases]
        self._console.print(f"{name}: {len(cases)} pairs in {perf_counter() - began:.0f} s")
        return pairs


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.bench.guard", description=__doc__)
    asked.add_argument("--pairs", type=int, default=0, help="about so many pairs, evenly chosen (default: all)")
    asked.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    chosen = asked.parse_args()
    colocation = DATA / "traces" / "colocation"
    need(path_of_cases(), colocation / "lucid_colocate_pairs.csv")
    cases = read(path_of_cases())
    if 0 < chosen.pairs < len(cases):
        cases = cases[:: len(cases) // chosen.pairs]
    console = Console(width=200)
    world, runs = World.read(colocation), Runs(chosen.jobs, console)
    laws = _laws(world, cases, runs)
    _show(console, "The guard beside others: the reference model", laws)
    others = _conditions(world, cases[::PART], runs)
    _show(console, "Berth's guard under other conditions", others)
    paired = _pairings(world, cases[::PART], runs)
    _show(console, "MuxFlow and its ablations, with mean measured speeds of each pair of models", paired)
    figures = [*_figures(world, laws, others), *_published(laws, paired)]
    report("guard", "The guard's bound and what guests get", figures, _notes(cases, world))


def _laws(world: World, cases: Sequence[Case], runs: Runs) -> dict[str, Summary]:
    settings = GuardSettings()
    runners: dict[str, Runner] = {
        "oracle": systems.oracle(Linear),
        "no guard: time slices only": systems.slices_only(world),
        "no guard: MPS only": systems.mps_only,
        **{name: systems.guarded(world, settings, law=law) for name, law in PEERS.items()},
        DEFAULT: systems.guarded(world, settings),
    }
    return _all(runners, cases, runs)


def _conditions(world: World, cases: Sequence[Case], runs: Runs) -> dict[str, Summary]:
    settings = GuardSettings()
    found = _all(
        {
            "oracle": systems.oracle(Linear),
            "no minute alone: an owner comes to a guest": systems.guarded(world, settings, alone_s=0.0),
            LAUNCHES: systems.guarded(world, settings, hears="launches"),
            NOTHING: systems.guarded(world, settings, hears=""),
        },
        cases,
        runs,
    )
    contended = _all(
        {
            "oracle, contention by the fitted model": systems.oracle(world.contended),
            "contention by the fitted model": systems.guarded(world, settings, world.contended),
        },
        cases,
        runs,
    )
    sliced = _all(
        {
            "oracle, by time slices": systems.oracle(world.sliced),
            "no guard, by time slices": systems.slices_only(world),
            "by time slices": systems.guarded(world, settings, world.sliced),
        },
        cases,
        runs,
    )
    return found | contended | sliced


def _pairings(world: World, cases: Sequence[Case], runs: Runs) -> dict[str, Summary]:
    settings = GuardSettings()
    known = systems.measured(world, cases)
    if not known:
        return {}
    found: dict[str, Summary] = {}
    for title, pairs in (("matched", systems.matched(world, known)), ("not matched", known)):
        off = "" if title == "matched" else "-M"
        found |= _all(
            {
                f"oracle, {title}": systems.oracle(Linear),
                f"MuxFlow{off}": systems.muxflow(world, settings, allocates=True),
                f"MuxFlow-S{off}": systems.muxflow(world, settings, allocates=False),
                f"Berth, {title}": systems.guarded(world, settings),
            },
            pairs,
            runs,
        )
    return found


def _all(runners: dict[str, Runner], cases: Sequence[Case], runs: Runs) -> dict[str, Summary]:
    """Each system's summary beside the first one, which is the oracle."""
    pairs = {name: runs(name, runner, cases) for name, runner in runners.items()}
    best = next(iter(pairs.values()))
    return {name: summary(these, best) for name, these in pairs.items()}


def _show(console: Console, title: str, rows: dict[str, Summary]) -> None:
    table = Table(title=title)
    for column in ("", *(name for name, _ in COLUMNS)):
        table.add_column(column)
    for name, row in rows.items():
        table.add_row(name, *(text(row) for _, text in COLUMNS))
    console.print(table)


def _figures(world: World, laws: dict[str, Summary], others: dict[str, Summary]) -> list[Figure]:
    ours, tgs, mps = laws[DEFAULT], laws["TGS"], laws["no guard: MPS only"]
    owner, late = others["no minute alone: an owner comes to a guest"], others["contention by the fitted model"]
    sliced, by_launches, blind = others["by time slices"], others[LAUNCHES], others[NOTHING]
    return [
        at_most("slowdown_p99", ours.slowdown_p99, BOUND, "of 10 s windows", "MPS only", mps.slowdown_p99),
        at_most("slowdown_mean", ours.slowdown_mean, 0.02, "", "MPS only", mps.slowdown_mean),
        at_least("guest_share", ours.guest_share, 0.60, "of the oracle's", "TGS", tgs.guest_share),
        at_least("guest_share_harmed", ours.guest_share_harmed, 0.45, "of the oracle's", "TGS", tgs.guest_share_harmed),
        at_least(
            "guest_share_unharmed", ours.guest_share_unharmed, 0.98, "of the oracle's", "TGS", tgs.guest_share_unharmed
        ),
        at_most("reaction_s", ours.reaction_s, 2.0, "s (p95)", "TGS", tgs.reaction_s),
        at_most("reaction_steps", ours.reaction_steps, 3.0, "steps (p95)", "TGS", tgs.reaction_steps),
        at_least("services_kept", ours.services_kept, 0.99, "of services", "TGS", tgs.services_kept),
        at_most("actions", ours.actions, 6.0, "a minute", "TGS", tgs.actions),
        at_most("owner_comes_slowdown_p99", owner.slowdown_p99, BOUND, "of 10 s windows"),
        at_least("owner_comes_guest_share_harmed", owner.guest_share_harmed, 0.45, "of the oracle's"),
        at_most(
            "launches_slowdown_p99", by_launches.slowdown_p99, BOUND, "of 10 s windows", NOTHING, blind.slowdown_p99
        ),
        Figure("launches_guest_share", by_launches.guest_share, "of the oracle's", NOTHING, blind.guest_share),
        Figure(
            "launches_guest_share_harmed",
            by_launches.guest_share_harmed,
            "of the oracle's",
            NOTHING,
            blind.guest_share_harmed,
        ),
        at_most("contended_slowdown_p99", late.slowdown_p99, BOUND, "of 10 s windows"),
        at_least("contended_guest_share_harmed", late.guest_share_harmed, 0.45, "of the oracle's"),
        at_most("sliced_slowdown_p99", sliced.slowdown_p99, BOUND, "of 10 s windows"),
        Figure("sliced_guest_share", sliced.guest_share, "of the oracle's"),
        Figure("device_error", world.model.error, "of speed", "mean of the other half", world.model.error_of_mean),
    ]


def _published(laws: dict[str, Summary], paired: dict[str, Summary]) -> list[Figure]:
    """The laws of AntMan and MuxFlow beside ours, on the same pairs."""
    beside = {"antman": (laws["AntMan's duty cycle"], laws[DEFAULT])}
    for key, title in (("muxflow", "MuxFlow"), ("muxflow_s", "MuxFlow-S")):
        if title in paired:
            beside[key] = paired[title], paired["Berth, matched"]
    return [
        Figure(f"{key}_{name}", float(getattr(theirs, name)), unit, "Berth, same pairs", float(getattr(ours, name)))
        for key, (theirs, ours) in beside.items()
        for name, unit in (
            ("guest_share", "of the oracle's"),
            ("slowdown_p99", "of 10 s windows"),
            ("services_kept", "of services"),
        )
    ]


def _notes(cases: Sequence[Case], world: World) -> dict[str, str]:
    return {
        "cases": f"{len(cases)} pairs of {path_of_cases().name}, of which MPS alone harms "
        f"{sum(case.harmed for case in cases)}",
        "harmed": "the host is slower than the bound beside the guest at full duty, outside bursts already",
        "oracle": "knows the future: the best constant duty per burst phase that keeps 5 %",
        "reaction": "time from a burst that takes the host to twice the bound or more until the bound holds again; "
        "in seconds where three steps are shorter than 2 s, else in steps",
        "services": "p99 of latency within 10 ms or 5 % of the p99 alone, with the same noise",
        "predicted slope": "the truth with the error of a predictor whose mean absolute error is 0.042",
        "device model": f"fitted on one half of the published pairs, judged on {world.model.pairs} others",
        "time slices": f"fitted on 6 published pairs; mean error of relative latency on 6 others: "
        f"{world.model.slices_error:.2f}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


if __name__ == "__main__":
    main()
