# SPDX-License-Identifier: Apache-2.0
"""berth report, on lines as sacct prints them."""

from __future__ import annotations

import doctest
import importlib
import json
import os
from collections.abc import Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from policy.cli.main import main
from policy.formats.errors import FormatError
from policy.report import charts
from policy.report.counts.spread import Spread
from policy.report.page import page
from policy.report.rows import COLUMNS, read
from policy.report.site import Site
from policy.report.tally import Period, Tally
from policy.report.text import text, verdict
from policy.retry.rules import shipped_rules
from tests.programs import python_program

DAY = 86_400
FOREVER = Period(0.0, float("inf"))
EIGHT = Site({f"n{number}": 8 for number in range(1, 9)}, {"leaf": {f"n{n}": f"s{n % 2}" for n in range(1, 9)}})
HEADER = "|".join(COLUMNS)


def line(
    job: int | str,
    *,
    gpus: int = 1,
    submit: int = DAY,
    eligible: int | str = "",
    start: int | str = "",
    ran: int = 3_600,
    state: str = "COMPLETED",
    code: str = "0:0",
    reason: str = "None",
    nodes: str = "n1",
    asked: int = 1,
    user: str = "ann",
    used: str = "",
    comment: str = "",
) -> str:
    begin = start or submit
    end: int | str = begin + ran if isinstance(begin, int) else "Unknown"
    tres = f"billing=1,cpu=1,gres/gpu={gpus},mem=1000M,node={asked}" if gpus else "cpu=1,node=1"
    values = (job, submit, eligible or submit, begin, end, ran, state, code, reason, 1, 60, user, "lab", tres, tres)
    return "|".join(map(str, (*values, used, nodes, comment)))


def figures(*lines: str, site: Site = EIGHT, period: Period = FOREVER) -> dict[str, Any]:
    tally = Tally(site, shipped_rules())
    tally.add(read([HEADER, *lines]), period, period.until)
    return tally.figures(period)


@pytest.mark.parametrize("name", ["rows", "site", "counts.spread", "counts.places", "text"])
def test_the_examples_work(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"policy.report.{name}")).failed == 0


def test_waits_begin_when_a_job_may_start_and_are_told_by_size() -> None:
    found = figures(
        line(1, gpus=1, submit=1_000, eligible=5_000, start=5_030),
        line(2, gpus=8, submit=1_000, start=4_600),
        line(3, gpus=16, submit=1_000, start=1_000, nodes="n[1-2]"),
    )

    assert {size: (one["mean_s"], one["delays"]) for size, one in found["waits"].items()} == {
        "1": (30.0, 0),
        "5-8": (3_600.0, 1),
        ">8": (0.0, 0),
    }


def test_late_starts_are_those_beyond_the_promise_that_berthd_wrote() -> None:
    told = [f"[berth/1 because=capacity promised={text}]" for text in ("4000,4599", "4000,4598", "4000", "x,9", "")]
    found = figures(*(line(1 + at, submit=1_000, start=4_600, comment=text) for at, text in enumerate(told)))
    [waits] = found["waits"].values()
    assert (waits["delays"], waits["promised"], waits["late"]) == (5, 2, 1)


def test_a_reason_of_berthd_stands_before_slurms_and_slurms_before_none() -> None:
    told = "[berth/1 state=placed because=fragmentation because_text=no%20node]"
    found = figures(
        line(1, submit=1_000, start=2_000, reason="QOSMaxGRESPerUser", comment=told),
        line(2, submit=1_000, start=2_800, reason="AssocGrpGRES"),
        line(3, submit=1_000, start=4_600),
    )

    reasons = {(one["reason"], one["by"]): one["hours"] for one in found["waits"]["1"]["reasons"]}
    assert reasons == {
        ("fragmentation", "berthd"): 0.28,
        ("fair_share", "slurm"): 0.5,
        ("order_or_room", "nobody"): 1.0,
    }


def test_waiting_beside_idle_gpus_is_told_from_waiting_for_room() -> None:
    # 64 GPUs: 60 are busy for an hour, so that a job of 8 has no room, and one of 4 has.
    busy = line(1, gpus=60, submit=60_000, ran=3_600, nodes="n[1-8]")
    found = figures(
        busy,
        line(2, gpus=8, submit=60_000, start=64_800),
        line(3, gpus=4, submit=60_000, start=63_600),
    )

    assert found["waits"]["5-8"]["enough_idle_hours"] == pytest.approx(1 / 3, abs=0.02)
    assert found["waits"]["2-4"]["enough_idle_hours"] == 1.0


def test_places_are_counted_by_nodes_and_leaves_and_what_was_asked_is_no_fault() -> None:
    found = figures(
        line(1, gpus=8, nodes="n[1-2]"),
        line(2, gpus=8, nodes="n[1-2]", asked=2),
        line(3, gpus=16, nodes="n1,n3"),
        line(4, gpus=16, nodes="n[1-2]"),
        line(5, gpus=8, nodes="n5"),
    )

    places = found["places"]
    assert places["by_size"]["5-8"]["runs_on_nodes"] == {"1": 1, "2": 2}
    assert (places["runs"]["more_nodes"], places["runs"]["more_nodes_asked"]) == (2, 1)
    # n1 and n3 are of one leaf, n1 and n2 of two.
    assert (places["runs"]["several_nodes_leaf_known"], places["runs"]["more_leaf"]) == (4, 3)
    stakes = {one["name"]: one["value"] for one in found["worth"]}
    assert (stakes["locality_nodes"], stakes["locality_leaf"]) == (8.0, 32.0)


def test_use_is_the_gpus_share_that_steps_had_weighed_by_their_time() -> None:
    found = figures(
        line(1, gpus=2, ran=1_000, nodes="n1"),
        line("1.batch", gpus=2, ran=1_000, used="cpu=00:01:00,gres/gpumem=100M,gres/gpuutil=40"),
        line("1.0", gpus=2, ran=500, used="gres/gpuutil=80"),
        line(2, gpus=1, ran=1_000),
    )

    use = found["use"]
    # Of two GPUs 40 % in one for all the time, and 80 % for half of it.
    assert use["busy"]["size"] == {"2-4": pytest.approx(0.4)}
    assert use["measured_gpu_hours"] == round(2_000 / 3_600, 2)


def test_failures_have_berthds_class_else_what_the_exit_tells() -> None:
    found = figures(
        line(1, state="FAILED", code="1:0", comment="[berth/1 state=placed fail=import_error]", gpus=4, ran=60),
        line(2, state="OUT_OF_MEMORY", code="0:125"),
        line(3, state="FAILED", code="3:0"),
        line(4, state="NODE_FAIL"),
        line(5, state="CANCELLED by 1000", user="bob"),
        line(6, state="CANCELLED by 0", comment="[berth/1 state=placed idle_told=3,1700000000]"),
        line(7, state="CANCELLED by 1000", comment="[berth/1 state=placed idle_told=2,1700000000]"),
    )

    classes = {name: (one["runs"], one["told_by_berthd"]) for name, one in found["failures"].items()}
    assert classes == {
        "import_error": (1, 1),
        "cpu_out_of_memory": (1, 0),
        "no_signature": (1, 0),
        "mpi_runtime_failure": (1, 0),
    }
    assert {name: one["runs"] for name, one in found["status"].items()} == {
        "killed": 2,
        "ended for idle GPUs": 1,
        "failed": 4,
    }
    # Three of its four GPUs for a minute: the first run on one would have told.
    assert found["early"] == {"runs": 1, "gpu_hours": 0.05, "spread_hours": 0.05}


def test_tries_again_are_told_by_what_came_of_them() -> None:
    failed = partial(line, state="OUT_OF_MEMORY", code="0:125", ran=3_600)
    found = figures(
        failed(1, submit=10_000),
        failed(1, submit=20_000),
        line(2, submit=10_000, state="NODE_FAIL", ran=600),
        line(2, submit=20_000, ran=7_200),
        failed(3, submit=25_000),
        failed(4, submit=90_000),
    )

    tries = {name: (one["runs"], one["gpu_hours"]) for name, one in found["tries"].items()}
    assert tries == {
        "again": (2, 3.0),
        "passed_in_the_end": (1, 2.0),
        "failed_alike": (1, 1.0),
        # Job 3 came soon after job 1 had failed for the last time, job 4 much later.
        "resubmitted_alike": (1, 1.0),
    }


def test_a_failure_that_was_requeued_is_one() -> None:
    found = figures(
        line(1, submit=10_000, state="REQUEUED", code="9:0"),
        line(1, submit=20_000, state="FAILED", code="9:0"),
        line(2, state="REQUEUED"),
    )

    assert found["failures"]["no_signature"]["runs"] == 2
    assert found["tries"]["again"]["runs"] == 1


def test_each_run_counts_once_whatever_the_parts_that_list_it() -> None:
    tally = Tally(EIGHT, shipped_rules())
    lines = [HEADER, line(1, gpus=2, submit=DAY // 2, ran=2 * DAY), line(2, submit=2 * DAY, ran=60)]
    lines.append(line(3, submit=2 * DAY, start=2 * DAY, ran=5 * DAY))
    for day in range(4):
        tally.add(read(lines), Period(day * DAY, (day + 1) * DAY), 4.0 * DAY)
    found = tally.figures(Period(0.0, 4.0 * DAY))

    assert (found["counts"]["runs"], found["counts"]["open"]) == (2, 1)
    assert max(value for _, value in found["busy"]) == 3.0


def test_a_file_may_end_while_jobs_run_and_they_hold_their_gpus_to_its_end() -> None:
    running = line(1, gpus=4, submit=DAY, ran=7_200).replace(f"|{DAY + 7_200}|", "|Unknown|")
    found = figures(running, line(2, gpus=8, submit=DAY + 600, start=DAY + 600, ran=3_600))

    assert found["counts"]["open"] == 1
    assert found["busy"][0] == [DAY + 600, 12.0]
    assert found["busy"][-1][1] == 12.0


def test_what_holds_no_whole_gpu_or_never_ran_is_counted_apart() -> None:
    part = line(1).replace("gres/gpu=1", "gres/shard:g0=30,gres/shard=30")
    found = figures(part, line(2, gpus=0), line(3, state="CANCELLED by 0", start="Unknown", ran=0))
    never = line(4, ran=0, state="CANCELLED by 0", nodes="None assigned").split("|")
    never[3] = "None"
    never[4] = "90000"
    with_never = figures("|".join(never))

    assert (found["counts"]["parts"], found["counts"]["without_gpus"]) == (1, 1)
    assert (with_never["counts"]["runs"], with_never["counts"]["never_started"]) == (1, 1)


def test_no_comment_can_pass_for_a_row() -> None:
    hostile = "note|5|6|7\n9|oops|[berth/1 fail=nonsense]\nand more"
    found = figures(*line(1, comment=hostile).split("\n"), line(2))

    assert found["counts"]["runs"] == 2
    assert found["failures"] == {}


def test_accounts_and_users_have_sums_of_their_own() -> None:
    found = figures(
        line(1, gpus=2, submit=DAY, start=DAY + 1_800, user="ann"),
        line(2, gpus=8, state="FAILED", code="1:0", user="bob"),
        line(3, user="ann", ran=1_800),
    )

    assert list(found["users"]) == ["bob", "ann"]
    ann = {"runs": 2, "gpu_hours": 2.5, "delays": 1, "delay_hours": 0.5, "failed_gpu_hours": 0.0, "busy": None}
    assert found["users"]["ann"] == ann
    assert found["users"]["bob"]["failed_gpu_hours"] == 8.0
    assert found["accounts"]["lab"]["gpu_hours"] == 10.5
    assert ["bob", "1", "8.00", "0", "0.00", "8.00"] in [row.split() for row in text(found).splitlines()]


def test_the_verdict_names_a_size_in_words_and_no_remedy_that_is_worth_nothing() -> None:
    waited = line(1, gpus=16, submit=DAY, start=DAY + 7_200, ran=360_000, nodes="n[1,3]")
    early = line(2, gpus=8, submit=DAY, start=DAY, ran=300, state="FAILED", code="1:0")

    assert verdict(figures(waited, early)).endswith(
        "most of it jobs on more than 8 GPUs; for 2.00 h of that as many GPUs were idle as they asked for."
    )
    assert "What to do first: " in verdict(figures(early))


def test_a_table_shows_the_ten_users_that_held_most() -> None:
    shown = text(figures(*(line(n, user=f"u{n:02}", ran=3_600 * n) for n in range(1, 13))))

    assert "u12" in shown
    assert "u03" in shown
    assert "u02" not in shown
    assert "(the 10 of 12 that held most)" in shown


def test_another_table_is_refused() -> None:
    with pytest.raises(FormatError, match="first line"):
        list(read(["JobID|State", "1|COMPLETED"]))


def test_quantiles_are_right_within_two_percent_in_little_memory() -> None:
    spread = Spread()
    for number in range(100_000):
        spread.add(number)

    assert spread.quantile(0.5) == pytest.approx(50_000, rel=0.02)
    assert spread.quantile(0.99) == pytest.approx(99_000, rel=0.02)
    assert len(spread._bins) < 1_000


def test_a_spread_without_values_is_zero() -> None:
    assert set(Spread().figures().values()) == {0.0}


def test_the_page_is_one_well_formed_file_that_loads_nothing() -> None:
    found = figures(
        line(1, gpus=8, submit=1_000, start=9_000, nodes="n[1-2]"),
        line(2, gpus=2, state="FAILED", code="1:0", submit=2_000, user="<b>&"),
    )
    shown = page(found)

    root = ElementTree.fromstring(shown.removeprefix("<!doctype html>"))  # noqa: S314 - our own page
    names = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(names) == len(set(names))
    assert len([one for one in root.iter() if one.tag.endswith("svg")]) == (3 if charts.available() else 0)
    assert (charts.MISSING in unescape(shown)) != charts.available()
    assert shown.index('class="verdict"') < shown.index("runs of GPU jobs ended")
    assert "<script" not in shown
    assert "src=" not in shown
    assert "href=" not in shown


RECORDED = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("version", "by_berth", "status", "on_nodes", "more", "reasons"),
    [
        (
            *("24.11", 5, {"passed": 7, "killed": 1, "timed out": 1, "requeued": 1, "failed": 5}),
            *({"1": 1, "2": 2}, 3, {"5-8": [("capacity", "berthd", 1)]}),
        ),
        (
            # Here a job that failed keeps that state when it is requeued, and plain Slurm spread nothing.
            *("26.05", 11, {"passed": 7, "killed": 1, "timed out": 1, "failed": 6}),
            *({"1": 3}, 1, {"5-8": [("capacity", "berthd", 1)], ">8": [("order_or_room", "nobody", 1)]}),
        ),
    ],
)
def test_what_a_real_cluster_recorded(
    version: str,
    by_berth: int,
    status: dict[str, int],
    on_nodes: dict[str, int],
    more: int,
    reasons: dict[str, list[tuple[str, str, int]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Jobs of all fates on four nodes of 8 GPUs: failed, killed, over their limit, requeued, arrays, wide, shared."""
    path = RECORDED / f"slurm-{version}" / "sacct-report"

    assert main(["report", "--from", str(path), "--gpus-per-node", "8", "--json", "-"]) == 0

    found = json.loads(capsys.readouterr().out)
    counts = {"runs": 15, "by_berth": by_berth, "without_gpus": 1, "parts": 1, "open": 0, "never_started": 0}
    assert found["counts"] == counts
    assert {name: one["runs"] for name, one in found["status"].items()} == status
    # Exit 3, 1, 2, and 9 twice, of which nothing tells why; and one that somebody killed without a word.
    failures = {name: one["runs"] for name, one in found["failures"].items()}
    assert failures == {"no_signature": 5, "cpu_out_of_memory": 1}
    assert found["tries"]["again"]["runs"] == 1
    assert found["places"]["by_size"]["5-8"]["runs_on_nodes"] == on_nodes
    assert (found["places"]["runs"]["more_nodes"], found["places"]["runs"]["more_nodes_asked"]) == (more, 1)
    assert {
        size: [(told["reason"], told["by"], told["delays"]) for told in one["reasons"]]
        for size, one in found["waits"].items()
        if one["reasons"]
    } == reasons


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sacct that prints what it is given, after its header, and a cluster without Berth."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (tmp_path / "answer").write_text(f"{HEADER}\n")
    show = "import os, sys; open(sys.path[0] + '/../asked', 'a').write(' '.join(sys.argv[1:]) + chr(10))"
    python_program(
        commands / "sacct",
        f"{show}\nassert os.environ['SLURM_TIME_FORMAT'] == '%s'\n"
        "sys.stdout.write(open(sys.path[0] + '/../answer').read())\n",
    )
    python_program(commands / "scontrol", "raise SystemExit(1)\n")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.delenv("BERTH_CONF", raising=False)
    return tmp_path


def test_the_command_asks_day_by_day_and_writes_all_three_forms(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "answer").write_text(f"{HEADER}\n{line(1, gpus=8, submit=1_793_600_000, start=1_793_607_200)}\n")
    words = ["--since", "2026-11-01", "--until", "2026-11-04", "--gpus-per-node", "8"]
    written = slurm / "report.json", slurm / "report.html"

    assert main(["report", *words, "--json", str(written[0]), "--html", str(written[1])]) == 0

    asked = (slurm / "asked").read_text().splitlines()
    assert len(asked) == 3
    assert asked[0].startswith("-aDP -S 2026-10-31T23:00:00 -E 2026-11-02T01:00:00 -o JobIDRaw,")
    assert "1 runs of GPU jobs ended" in capsys.readouterr().out
    found = json.loads(written[0].read_text())
    assert (found["format"], found["counts"]["runs"]) == ("berth-report/1", 1)
    assert written[1].read_text().startswith("<!DOCTYPE html>")


def test_a_saved_answer_needs_no_slurm(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = slurm / "saved"
    saved.write_text(f"{HEADER}\n{line(1, gpus=2, nodes='n[1-2]')}\n")

    assert main(["report", "--from", str(saved), "--gpus-per-node", "8", "--json", "-"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["places"]["runs"] == {"runs": 1, "more_nodes": 1}
    assert not (slurm / "asked").exists()


def test_a_record_of_step_times_that_is_not_this_users_is_left_out(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "answer").write_text(f"{HEADER}\n{line(1, gpus=8, submit=1_793_600_000, start=1_793_607_200)}\n")
    record = slurm / "steps"
    record.mkdir()  # it cannot be read, whoever runs this test
    (slurm / "berth.conf").write_text(f'[berthd]\nsteps = "{record}"\n')
    monkeypatch.setenv("BERTH_CONF", str(slurm / "berth.conf"))

    assert main(["report", "--since", "2026-11-01", "--until", "2026-11-04", "--gpus-per-node", "8"]) == 0

    assert "GPU jobs waited 2.00 h" in capsys.readouterr().out


def test_a_sacct_that_fails_is_told_in_its_own_words(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python_program(slurm / "bin" / "sacct", "raise SystemExit('Slurm accounting storage is disabled')\n")

    assert main(["report"]) == 1
    assert "Slurm accounting storage is disabled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "yesterday"], "'yesterday' is no time"),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "--since must lie before"),
        (["--from", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_wrong_calls_are_told(slurm: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err


def many(number: int) -> Iterator[str]:
    yield HEADER
    for job in range(number):
        wait = job % 5_000
        yield line(job + 1, gpus=2 ** (job % 5), submit=10_000 + 30 * job, start=10_000 + 30 * job + wait)


@pytest.mark.slow
def test_memory_hardly_grows_with_the_jobs() -> None:
    import tracemalloc  # noqa: PLC0415

    tally = Tally(EIGHT, shipped_rules())
    tracemalloc.start()
    tally.add(read(many(6_000)), FOREVER, FOREVER.until)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    # Most of it are the minutes of the time: 100 bytes each, here 3,000 of them.
    assert used < 1 << 20
    assert "6,000 runs" in text(tally.figures(FOREVER))
