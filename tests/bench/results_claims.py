# SPDX-License-Identifier: Apache-2.0
"""The claims of the results page: which figures each one draws, and what it says about them in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.bench.results_charts import Mark
from tests.bench.results_tables import Page, Table, page, table

Point = tuple[str, str, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One plot, its data and its paragraph."""

    name: str
    title: str
    shows: str
    """Describes the plot for those who cannot see it."""
    kind: Literal["groups", "intervals", "growth"]
    unit: str
    points: Sequence[Point]
    text: str
    sources: Sequence[Table | str]
    """Tables, or a sentence where a page says itself how it was measured."""
    mark: Mark | None = None
    log_x: bool = False


def _bar(row: str, series: str, value: float) -> Point:
    return (row, series, value, value, value)


def _say(text: str, main: Table | None = None, **others: Table | str | float) -> str:
    """Fills a paragraph in: `{figure}` from the main table, `{name.figure}` from another one, `{name}` from elsewhere.

    A form may follow: digits (`:0`), percent (`:%1`), either of the peer (`:peer`, `:peer%`), the ratio to the peer
    (`:ratio`), or how much less than the peer's it is (`:less`).
    """

    def filled(match: re.Match[str]) -> str:
        name, _, form = match[1].partition(":")
        other, dot, figure = name.rpartition(".")
        source = others[other] if dot else others.get(name, main)
        if not isinstance(source, Table):
            return str(source)
        value = source.peer(figure) if form.startswith(("peer", "ratio", "less")) else source.value(figure)
        if form in {"ratio", "less"}:
            ratio = source.value(figure) / value
            return f"{ratio:.2f}" if form == "ratio" else f"{100 * (1 - ratio):.0f} %"
        form = form.removeprefix("peer")
        if form.startswith("%"):
            return f"{100 * value:.{form[1:] or 0}f} %"
        return f"{value:.{form}f}" if form else f"{value:g}"

    return re.sub(r"\{([^{}]+)\}", filled, text)


def _found(pattern: str, where: Page) -> str:
    found = re.search(pattern, where.text)
    if not found:
        raise LookupError(f"{where.name}: nothing is like {pattern}")
    return found[1]


def links() -> Claim:
    forms, sets = page("request-forms.md"), table("best-sets")
    columns = {
        "Berth": 4,
        "--gpus=K with K tasks": 3,
        "--gpus=K": 2,
        "--gres=gpu:K and the like": 1,
    }
    points, drawn, hit = [], 0, dict.fromkeys(columns, 0)
    for cells in forms.rows("asked and free"):
        for series, place in columns.items():
            good, of = map(int, cells[place].split("/"))
            hit[series] += good
            drawn += of if series == "Berth" else 0
            if of > 1:
                points.append(_bar(cells[0], series, 100 * good / of))
    found = re.findall(r"Slurm ([\d.]+): (\d+) rows, Berth best in (\d+), Slurm alone in (\d+)", sets.notes["summary"])
    opened = "; ".join(f"Slurm {name}: {best} of {of}, Slurm alone {alone}" for name, of, best, alone in found)
    when = _found(r"(`make bench NAME=forms`.*?)\. ", forms)
    return Claim(
        name="exact-links",
        title="Jobs get the GPUs that are linked best",
        shows="How often plain Slurm gives the best linked GPUs by form of request, and Berth always",
        kind="groups",
        unit="draws of busy GPUs in which the best linked free GPUs were given, %",
        points=points,
        text=_say(
            """
Two or four GPUs are asked of a node on which some GPUs are busy. Plain Slurm's answer depends on the form: of {drawn}
draws `--gres=gpu:K` got the best set {gres} times, `--gpus=K` {gpus} times, and with a task for each GPU {tasks}
times. Berth got it each time. By the device files that jobs open, beside all subsets, Berth was best in {opened}.
""",
            drawn=drawn,
            gres=hit["--gres=gpu:K and the like"],
            gpus=hit["--gpus=K"],
            tasks=hit["--gpus=K with K tasks"],
            opened=opened,
        ),
        sources=[
            f"{when} ([table](request-forms.md))",
            sets,
        ],
    )


def hook() -> Claim:
    run = table("hook")
    kinds = {
        "held, all of one kind": "",
        "held, each with its own limit": "limits_",
        "held, never seen before": "new_",
        "started at once": "taken_",
    }
    points = [
        _bar(row, series, run.value(f"{prefix}{name}_over_echo_ms"))
        for row, prefix in kinds.items()
        for series, name in (("median", "p50"), ("99th percentile", "p99"))
    ]
    return Claim(
        name="hook-latency",
        title="The submission hook is short",
        shows="Milliseconds that Berth's hook takes beyond a plugin that asks an echo daemon, by kind of job",
        kind="groups",
        unit="ms in the hook, beyond a plugin that asks a bare echo daemon",
        points=points,
        text=_say(
            """
slurmctld calls the hook under its locks. The median is {hook_p50_ms} ms for jobs of one kind, an echo's
{hook_p50_ms:peer} ms; with berthd dead it is {dead_ms} ms. The bounds are 0.3 ms for the median and 2 ms for the 99th
percentile beyond the echo. **Missed**: new kinds of jobs need a search each ({new_p50_over_echo_ms} ms); slurmctld
takes {new_rate_vs_echo:%} as many of them as with the echo, where 90 % was the aim.
""",
            run,
        ),
        sources=[run],
    )


def replay() -> Claim:
    runs = {
        "24.11, blocks": table("replay"),
        "26.05, blocks": table("replay-26.05"),
        "24.11, tree": table("replay-tree"),
    }
    control = table("replay-scores")
    rows = {
        "mean wait": "wait_ratio",
        "submission to end, mean": "jct_ratio",
        "makespan": "makespan_ratio",
        "95th percentile of waits, worst size": "p95_wait_ratio",
        "longest wait": "longest_wait_ratio",
        "mean wait, counted with GPUs": "weighed_wait_ratio",
    }
    block, _, tree = runs.values()
    return Claim(
        name="replay",
        title="On a real Slurm jobs wait less",
        shows="Waits and times of Berth over plain Slurm's in three replays on a real Slurm",
        kind="groups",
        unit="Berth over plain Slurm; less is better",
        mark=Mark(1.0, "plain Slurm"),
        points=[_bar(row, series, run.value(name)) for row, name in rows.items() for series, run in runs.items()],
        text=_say(
            """
The same 1,500 jobs run on a real Slurm with 64 nodes of 8 simulated GPUs, five seeds. Each job sleeps for as long as
it would compute on its GPUs. Mean waits are {wait_ratio} of plain Slurm's, times from submission to end {jct_ratio}.
On 2026-11-28 these were {control.over_noscores_jct_ratio} of a control's that does not know the slow GPUs. Jobs on few
GPUs gain most.
**Missed**: {unplanned:0} jobs of an account that submits all of them were left to Slurm until the next pass.
With a tree of leaves (rules of 2026-11-22) the longest wait ({tree.longest_wait_ratio} of plain Slurm's), the 95th
percentile of the worst size ({tree.p95_wait_ratio}), Epilogs ({tree.epilog_p99_ms:0} ms at the 99th percentile, 50
wanted), {tree.unplanned:0} jobs left to Slurm. Two runs of plain Slurm on one seed differ by 15 % in the mean wait.
""",
            block,
            tree=tree,
            control=control,
        ),
        sources=[*runs.values(), control],
    )


def rules() -> Claim:
    source = page("slurm-rules.md")
    points = []
    for cells in source.rows("", "pairs", "Berth"):
        value, low, high = map(float, re.findall(r"[\d.]+", cells[2])[:3])
        points.append((f"{cells[0]} ({cells[1]} pairs)", "Berth", value, low, high))
    when = _found(r"Measured on ([\d-]+ \([^)]*\))", source)
    return Claim(
        name="slurm-rules",
        title="Under Slurm's rules Berth places better than PAL",
        shows="Mean time from submission to end, Berth over PAL, with 95 % intervals in six families",
        kind="intervals",
        unit="mean time from submission to end, Berth over PAL, with 95 % intervals",
        mark=Mark(1.0, "PAL"),
        points=points,
        text=_say(
            """
PAL (SC'24) is the published policy that knows how fast each GPU is. Here no job moves, and what waits is passed by
backfill, as Slurm does it.
Without time limits Berth's jobs end sooner on average, {flat} of PAL's time on a flat network and {leaves} with
leaves. With limits the gain is smaller: for leaves and pods the interval holds 1, so nothing is shown there. The aim
was to close 0.35 of the gap to a bound, and flat networks **miss** it. [More](slurm-rules.md).
""",
            flat=points[0][2],
            leaves=points[2][2],
        ),
        sources=[
            f'`make bench NAME=placement ARGS="--family slurm"` ([table](slurm-rules.md)), {when}, simulated',
        ],
    )


def packing() -> Claim:
    run = table("packing")
    feeds = {
        "Alibaba's pods": "default",
        "pods on parts of a GPU alone": "gpushare100",
        "a third asks for a model": "gpuspec33",
        "half of the GPUs in twos to eights": "multigpu50",
    }
    points = []
    for row, feed in feeds.items():
        points += [
            _bar(row, "Berth", 100 - run.value(f"{feed}_percent")),
            _bar(row, "FGD", 100 - run.value(f"{feed}_FGD_percent")),
            _bar(row, "best fit", 100 - run.value(f"{feed}_best_fit_percent")),
            _bar(row, "dot product", 100 - run.value(f"{feed}_dot_product_percent")),
        ]
    return Claim(
        name="packing",
        title="Shares are packed as tightly as FGD packs them",
        shows="GPUs that stay free when as many were asked for as there are, for four packers and four feeds",
        kind="groups",
        unit="GPUs left over, % of 6,212; less is better",
        points=points,
        text=_say(
            """
Alibaba's published pods are fed to its 1,213 nodes until as many GPUs were asked for as there are. FGD (ATC'23) is
our own implementation, within 0.2 points of the published figures. Berth gives {default_percent} %, FGD
{default_FGD_percent} %; with models asked for {gpuspec33_percent} and {gpuspec33_FGD_percent} %. **Missed** by a
tenth of a point: pods on parts of a GPU alone. With many pods on several GPUs the first refusal comes at
{multigpu50_first_refusal} %, FGD's at {multigpu50_first_refusal:peer} %.
""",
            run,
        ),
        sources=[run],
    )


def guard() -> Claim:
    run = table("guard")
    rows = {
        "guard": run.value("slowdown_p99"),
        "guard, the owner comes later": run.value("owner_comes_slowdown_p99"),
        "guard, a contended GPU": run.value("contended_slowdown_p99"),
        "guard, GPU shared by time slices": run.value("sliced_slowdown_p99"),
        "guard, launches instead of a heartbeat": run.value("launches_slowdown_p99"),
        "guard that hears nothing of the owner": run.peer("launches_slowdown_p99"),
        "MPS without a guard": run.peer("slowdown_p99"),
    }
    return Claim(
        name="guard",
        title="The guard keeps guests from slowing owners",
        shows="Slowdown of owners at the 99th percentile of ten-second windows, with the guard and without",
        kind="intervals",
        unit="slowdown of the owner, 99th percentile of 10 s windows, % (logarithmic)",
        mark=Mark(5.0, "bound, 5 %"),
        log_x=True,
        points=[_bar(row, "slowdown", round(100 * value, 6)) for row, value in rows.items()],
        text=_say(
            """
A guest uses what the owner of a GPU leaves idle; the guard aims at 5 %. Its own code runs in a closed loop with a
model of the GPU, on 1,000 pairs of jobs. Owners are {slowdown_p99:%1} slower at the 99th percentile, and guests do
{guest_share:%} of the work that an oracle would let them do; TGS (NSDI'23), rebuilt from its paper, allows
{guest_share:peer%}. A burst of the owner is answered within {reaction_s} s (95th percentile). On one
H200 a pair [was measured](gpu.md): one step in a hundred was 20 % slower.
""",
            run,
        ),
        sources=[run],
    )


def predictor() -> Claim:
    run = table("predictor")
    points = []
    for row, kind in (("a new pair of known models", "pairs"), ("a model never seen", "models")):
        points += [
            _bar(row, "Berth", run.value(f"mae_{kind}")),
            _bar(row, "Lucid's table", run.value(f"mae_{kind}_lucid")),
            _bar(row, "ridge regression", run.value(f"mae_{kind}_ridge")),
            _bar(row, "always the mean", run.value(f"mae_{kind}_constant")),
        ]
    return Claim(
        name="predictor",
        title="How two jobs get along on a GPU is predicted",
        shows="Mean absolute error of predicted speeds for new pairs and for new models, four methods",
        kind="groups",
        unit="mean absolute error of the speed beside the other job (1 is the speed alone)",
        points=points,
        text=_say(
            """
The truth are the 628 pairs that Lucid (ASPLOS'23) published, on one kind of GPU, by time slicing; each pair or model
is predicted from the others. The error is {mae_pairs} for new pairs and {mae_models} for new models. Of the time that
pairs with new models spend together by Berth's promises {false_safe_models:%1} harmed, while {safe_recall_models:%} of
the safe pairs are promised. The structure was chosen with all models in view.
""",
            run,
        ),
        sources=[run],
    )


def harm() -> Claim:
    run = table("harm")
    rows = {
        "1 node": "n1_row_ms",
        "2 nodes": "n2_row_ms",
        "4 nodes": "n4_row_ms",
        "1 GPU": "gpu_row_ms",
        "1 node, 3 s apart": "n1_apart_ms",
        "2 nodes, 3 s apart": "n2_apart_ms",
        "4 nodes, 3 s apart": "n4_apart_ms",
        "1 GPU, 3 s apart": "gpu_apart_ms",
    }
    points = []
    for row, name in rows.items():
        points += [_bar(row, "with Berth", run.value(name)), _bar(row, "plain Slurm", run.peer(name))]
    same = table("matrix")
    alive, dead = ("; ".join(f"Slurm {cells[0]}: {cells[at]}" for cells in same.rows) for at in (4, 5))
    return Claim(
        name="no-harm",
        title="Jobs that ask nothing of Berth hardly notice it",
        shows="Milliseconds that srun true takes with plain Slurm and with Berth, on one to four nodes",
        kind="groups",
        unit="ms for srun true, median",
        points=points,
        text=_say(
            """
The Prolog takes {prolog_ms} ms and the Epilog {epilog_ms} ms for a job without GPUs. **Missed**: 5 % on four nodes in
a row ({n4_row_ratio} of plain Slurm's time; beside plain Slurm with empty scripts {n4_scripts_ms:ratio}). Two figures
with 3 s between them are just beyond 1.05 too. Of the forms of `srun` and `salloc`, these were as on plain Slurm:
with berthd alive {alive}; with berthd dead {dead}.
""",
            run,
            alive=alive,
            dead=dead,
        ),
        sources=[run, same],
    )


def scale() -> Claim:
    plan, scrape = table("plan"), table("scrape")
    points = []
    for size, name in (("8,192 GPUs", "8192"), ("100,000 GPUs", "100k")):
        points += [
            _bar("a pass over 1,000 waiting jobs", size, plan.value(f"pass_{name}_ms")),
            _bar("a notice that a job ends, 99th percentile", size, plan.value(f"event_{name}_ms")),
            _bar("a scrape of the metrics, CPU", size, scrape.value(f"scrape_{name}_cpu_ms")),
        ]
    return Claim(
        name="planning-scale",
        title="Planning keeps up with 100,000 GPUs",
        shows="Milliseconds of a planning pass, a notice and a scrape at 8,192 and 100,000 GPUs",
        kind="groups",
        unit="ms",
        points=points,
        text=_say(
            """
With 1,000 jobs that wait on a full cluster a pass takes {pass_8192_ms} ms at 8,192 GPUs (the bound is 50) and
{pass_100k_ms:0} ms at 100,000 (400), with 10,000 waiting jobs {pass_8192_10k_jobs_ms:0} ms. The notice of a job's end
is planned in {event_8192_ms} ms. berthd needs {rss_mb:0} MB. The hook does not wait for passes.
""",
            plan,
        ),
        sources=[plan, scrape],
    )


def failures() -> Claim:
    run, rules_ = table("retry"), table("classify")
    rows = {
        "always the same number of tries": "fixed_lost_h",
        "tries only where worth it (Berth)": "adaptive_lost_h",
        "besides, first on one GPU": "preflight_lost_h",
    }
    return Claim(
        name="failures",
        title="Failing jobs waste a third less GPU time",
        shows="GPU hours lost to failing jobs in a week, for three ways to try again",
        kind="groups",
        unit="GPU hours lost to runs that failed, one week, 100 nodes of 8 GPUs",
        points=[_bar(row, "lost", run.value(name)) for row, name in rows.items()],
        text=_say(
            """
Berth classifies a failure by what the job wrote, and tries again only where another try may help. In a simulated week
with Microsoft's Philly jobs it loses {adaptive_lost_h:less} fewer GPU hours than a fixed number of tries. A first run
on one GPU saves no hours, but people hear of their mistake after {preflight_first_word_s:0} s instead of
{fixed_first_word_s:0}. {given_up_share:%} of the failing jobs get fewer tries than they had, though their failure
passes by itself. Of the logs with which no rule was mended {logs.fresh_accuracy:%1} of the classes are right; of
public projects new to the rules three of four ([failures](failures.md)).
""",
            run,
            logs=rules_,
        ),
        sources=[run, rules_],
    )


def stragglers() -> Claim:
    run = table("stragglers")
    kinds = {
        "a slow GPU": "gpu",
        "a GPU that is slow at times": "part",
        "two slow GPUs": "two",
        "a rank with more to do": "role",
        "a slow node": "node",
        "a slow pipeline stage": "stage",
        "a slow GPU beside pauses or stalls": "mixed",
        "slow data": "data",
        "uneven lengths": "lengths",
        "pauses": "pauses",
        "stalls": "stalls",
    }
    figures = run.figures()
    points = []
    for row, kind in kinds.items():
        points += [
            _bar(row, series, 100 * figures[f"{name}_{kind}"].value)
            for series, name in (("cause", "cause"), ("all ranks", "ranks"))
            if f"{name}_{kind}" in figures
        ]
    return Claim(
        name="stragglers",
        title="`berth why --slow` names what slows a job",
        shows="How often the cause and the ranks are named rightly, by kind of disturbance",
        kind="groups",
        unit="jobs in which it was named rightly, %",
        mark=Mark(90.0, "bound, 90 %"),
        points=points,
        text=_say(
            """
150 jobs of each kind were drawn with a known
disturbance, on 2 to 256 ranks. The least sure cause is pauses, with {cause_pauses:%}. Among jobs without a
disturbance there were {false_alarms:%} false alarms. The draws follow the model of the analysis.
""",
            run,
        ),
        sources=[run],
    )


def growing() -> Claim:
    run = table("growth")
    figures = run.figures()
    costs = {"a pass": "pass_ms", "a notice": "notice_ms", "an answer to the hook": "answer_ms", "memory": "rss_mb"}
    lines = {
        **{f"{name}, by GPUs": ("gpus", cost) for name, cost in costs.items()},
        **{f"{name}, by waiting jobs": ("jobs", cost) for name, cost in costs.items()},
        "a simulation, by its jobs": ("simulated", "simulation_s"),
    }
    points = []
    for name, (label, cost) in lines.items():
        pattern = re.compile(rf"{label}_([0-9]+)_{cost}")
        values = {int(found[1]): one.value for key, one in figures.items() if (found := pattern.fullmatch(key))}
        least = min(values)
        points += [_bar(name, f"{size / least:.6g}", value / values[least]) for size, value in values.items()]
    return Claim(
        name="growth",
        title="berthd's costs grow more slowly than cluster and queue",
        shows="Each cost of berthd and of the simulator against the size, both as multiples of the least",
        kind="growth",
        unit="cost, times the least",
        points=points,
        text=_say(
            """
From 1,024 to 100,000 GPUs with 1,000 waiting jobs a pass grows from {gpus_1024_pass_ms:0} to {gpus_100000_pass_ms:0}
ms. From 1,000 to a million waiting jobs on 100,000 GPUs it grows from {jobs_1000_pass_ms:0} to
{jobs_1000000_pass_ms:0} ms, as the power {jobs_pass_ms_exponent:2} of their number. (The 87 ms above are of two days
before, and each row has processes of its own.) With a million a notice is planned in {jobs_1000000_notice_ms:1} ms,
and a process with all of it has {jobs_1000000_rss_mb:0} MB. **Not so** the simulator: 10,000 jobs find free GPUs and
take {simulated_10000_simulation_s:0} s. 100,000 have to queue and take {simulated_100000_simulation_s:0} s, a million
{simulated_1000000_simulation_s:0} s and {simulated_1000000_simulation_rss_mb:0} MB.
""",
            run,
        ),
        sources=[run],
    )


CLAIMS: tuple[Callable[[], Claim], ...] = (
    links,
    hook,
    replay,
    rules,
    packing,
    guard,
    predictor,
    harm,
    scale,
    growing,
    failures,
    stragglers,
)
