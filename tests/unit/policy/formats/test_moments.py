# SPDX-License-Identifier: Apache-2.0
"""Whatever number a record of Slurm holds, each maker of texts writes a moment or a time, and ends in no traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.cli import listing
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_syntax.moments import bounded, local_time, moment_of
from policy.plan.answer.explain import rows, sentence
from policy.report import text
from policy.slurm.by_command import command
from tests.examples import examples

NO_VAL, INFINITE, NO_VAL64, INFINITE64 = 0xFFFFFFFE, 0xFFFFFFFF, 2**64 - 2, 2**64 - 1
ODD = (0, 1, NO_VAL, INFINITE, NO_VAL64, INFINITE64, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 253_402_300_800)
NUMBERS = st.sampled_from(ODD).flatmap(lambda one: st.integers(one - 2, one + 2)) | st.integers()
TIMES = ("start", "at", "again", "move_until", "until", "wait", "upgrade", "fail_at", "parked", "move_for", "granted")
STATES = ("PENDING", "RUNNING", "COMPLETED", "FAILED")
DECISIONS = ("placed", "waiting", "later", "observed", "passed", "released", "else")
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")

MAKERS: dict[str, Callable[[int], str]] = {
    "listing.moment": listing.moment,
    "listing.span": listing.span,
    "report day": text.day,
    "report span": text.span,
    "report hours": text.hours,
    "begin time for scontrol": lambda number: command._begin(str(number)),
    "local_time": local_time,
    "local_time of a text": lambda number: local_time(str(number)),
}


@pytest.mark.parametrize("name", MAKERS)
@given(number=NUMBERS)
@example(number=2**63 - 1)
@settings(max_examples=examples(60))
def test_each_text_of_a_number_is_made(name: str, number: int) -> None:
    assert MAKERS[name](number), f"{name} of {number}"


@given(
    st.sampled_from(STATES),
    st.sampled_from(DECISIONS),
    st.dictionaries(st.sampled_from(TIMES), NUMBERS.map(str), min_size=1),
    st.booleans(),
    st.lists(NUMBERS, max_size=3),
)
@example("PENDING", "waiting", {"start": str(2**63 - 1)}, True, [])
@settings(max_examples=examples(200))
def test_why_explains_a_job_whatever_moments_its_segment_holds(
    state: str, decision: str, values: dict[str, str], waits: bool, moves: list[int]
) -> None:
    told = {"state": decision, "nodes": "n1", "gpus": "0", "insists": "mps", **values}
    told |= {"because": "priority"} if waits else {}
    told |= {"moves": ",".join(map(str, moves)), "promised": ",".join(map(str, moves))} if moves else {}
    told |= {"tried": "cuda_failure:1:n1", "retry_text": "x"} if "again" in values else {}

    assert sentence(7, state, JobPlan(told))
    found = dict(rows(7, state, JobPlan(told)))
    for name in ("expected", "decided", "not before"):
        if name in found:
            assert DATE.fullmatch(found[name]), f"{name}: {found[name]}"


def test_numbers_that_are_none_are_dates_too() -> None:
    assert bounded(float("nan")) == 0.0
    assert local_time(float("inf")).startswith("9999-12-")
    assert local_time("9" * 5_000) == local_time(2**63)


def test_only_one_place_turns_a_number_of_slurms_into_a_date() -> None:
    """Other places have times of their own clock or of options, which are listed here."""
    own = {
        "policy/formats/slurm_syntax/moments.py",
        "policy/daemon/hear/step_times.py",
        "policy/serve/web/simulated.py",
        "policy/report/text.py",
        "policy/cli/calibrate/progress.py",
        "policy/cli/calibrate/run.py",
        "policy/cli/migrate/command.py",
        "policy/cli/past/collect.py",
        "prolog_epilog/doctor.py",
        "topology/calibrate/statistics.py",
    }
    turns = re.compile(r"fromtimestamp\(|localtime\(\S|gmtime\([^)]")
    found = {
        str(path)
        for folder in ("policy", "topology", "prolog_epilog")
        for path in Path(folder).rglob("*.py")
        if any(turns.search(line) and "localtime()" not in line for line in path.read_text().splitlines())
    }
    assert found - own == set(), "use policy.formats.slurm_syntax.moments.local_time, which bounds the number"


# What sacct's --starttime takes

NOON = datetime(2026, 11, 30, 12, 0, 0).timestamp()  # noqa: DTZ001 - by the clock of this host


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("2026-11-01", "2026-11-01T00:00:00"),
        ("2026-11-01T08:30", "2026-11-01T08:30:00"),
        ("1101", "2026-11-01T00:00:00"),
        ("110124", "2024-11-01T00:00:00"),
        ("12/24", "2025-12-24T00:00:00"),
        ("11/02/24-08:30", "2024-11-02T08:30:00"),
        ("11.02-08:30:15", "2026-11-02T08:30:15"),
        ("8:30", "2026-11-30T08:30:00"),
        ("8:30pm", "2026-11-29T20:30:00"),
        ("12:05 AM", "2026-11-30T00:05:00"),
        ("today", "2026-11-30T00:00:00"),
        ("teatime", "2026-11-30T16:00:00"),
        ("now", "2026-11-30T12:00:00"),
        ("now-90minutes", "2026-11-30T10:30:00"),
        ("now+30", "2026-11-30T12:00:30"),
        ("now-2weeks", "2026-11-16T12:00:00"),
    ],
)
def test_a_moment_is_read_as_sacct_reads_it(words: str, means: str) -> None:
    assert local_time(moment_of(words, NOON)) == means


@pytest.mark.parametrize("words", ["", "yesterday", "13/01", "1112:30", "1101-", "24:61", "now-", "7_3"])
def test_other_words_are_no_moment(words: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words will do, berth report has its own
        moment_of(words, NOON)
