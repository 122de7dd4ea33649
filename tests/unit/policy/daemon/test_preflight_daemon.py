# SPDX-License-Identifier: Apache-2.0
"""What berthd makes of pre-flights: who waits for whom, for how long, and what is told when one fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.jobs.why_failed import preflight_rows
from policy.daemon.write.preflights import Preflights
from policy.formats import segment, wire
from policy.formats.errors import FormatError, SlurmError
from policy.formats.flags import check
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.plan_fields import marks_preflight
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.answer.explain import rows
from policy.request.settings import Settings
from policy.retry.rules import shipped_rules
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting

PLACED = {"state": "placed", "id": "00ff", "n": "1", "k": "1", "nodes": "n1", "gpus": "0", "seats": "1"}
REAL, FIRST, WAIT = 42, 41, 60.0
CANCELLED = f"scancel --state=PENDING {FIRST}"
"""One that began in the same moment runs on."""
STRANGER = 7
"""The user of a job that names another user's pre-flight; `first` and `real` have user 0."""


class Slurm:
    """What is asked of Slurm, and the real jobs' records."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.comment = segment.put("theirs", PLACED)
        self.values: dict[int, dict[str, str]] = {}
        self.done: list[str] = []

    def run(self, *words: str) -> bytes:
        self.done.append(" ".join(words))
        if words[0] == self.refuses:
            raise SlurmError("Unable to contact slurm controller")
        return b""

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, "PENDING", 1_000, self.comment, "", "n1", "gres/gpu:g0:1", "")

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        if self.refuses == "annotate":
            raise SlurmError("Job/step already completing or completed")
        self.done.append(f"annotate {job_id}")
        self.values[job_id] = dict(plan.texts)


def flights(slurm: Slurm) -> Preflights:
    return Preflights(slurm, WAIT, slurm.run)  # type: ignore[arg-type]


def first(**changes: object) -> JobFacts:
    return waiting(FIRST, "n1", 1, **{"segment": {**PLACED, "preflight": "run"}, **changes})


def real(**changes: object) -> JobFacts:
    values = {**PLACED, "preflight": str(FIRST)}
    return waiting(REAL, "n1", 1, **{"segment": values, "reason": "Dependency", **changes})


def flying() -> JobFacts:
    return running(FIRST, "n1", 1, 600, segment={**PLACED, "preflight": "run"})


def look(*jobs: JobFacts, at: float = NOW) -> Reading:
    return reading([node("n1"), node("n2")], list(jobs), at=at)


def test_one_that_does_not_begin_keeps_its_job_for_a_bounded_time() -> None:
    slurm = Slurm()
    known = flights(slurm)
    for at in (0, WAIT - 1):
        known.step(look(first(), real(), at=NOW + at))
    assert slurm.done == []

    for _ in range(2):
        known.step(look(first(), real(), at=NOW + WAIT))

    # As soon as the pre-flight is gone the job may start, and nothing can be written any more.
    assert slurm.done == [f"annotate {REAL}", CANCELLED]
    assert {key: slurm.values[REAL][key] for key in PLACED} == PLACED
    shown = dict(rows(REAL, "PENDING", JobPlan({"preflight": str(FIRST), **slurm.values[REAL]})))
    assert shown["pre-flight"] == f"job {FIRST} did not begin within 60 s, so that the job goes on without it"


@pytest.mark.parametrize("reason", ["Dependency", "BeginTime"])
def test_one_that_waits_as_its_job_would_keeps_it_no_longer_than_that(reason: str) -> None:
    slurm = Slurm()
    known = flights(slurm)
    for at in (0.0, 10 * WAIT):
        known.step(look(first(reason=reason), real(), at=NOW + at))
    known.step(look(first(), real(), at=NOW + 11 * WAIT))
    known.step(look(flying(), real(), at=NOW + 20 * WAIT))

    assert slurm.done == []


@pytest.mark.parametrize("refuses", ["scancel", "annotate"])
def test_the_wait_has_its_bound_though_slurm_refuses_something_once(refuses: str) -> None:
    slurm = Slurm(refuses)
    known = flights(slurm)
    for at in (0, WAIT):
        known.step(look(first(), real(), at=NOW + at))
    slurm.refuses = ""
    known.step(look(first(), real(), at=NOW + WAIT + 1))
    assert slurm.done.count(CANCELLED) == 1, "not with each reading"
    known.step(look(first(), real(), at=NOW + 2 * WAIT))

    assert slurm.done.count(CANCELLED) == 2


def test_a_plan_that_another_wrote_over_is_not_lost_with_the_preflight() -> None:
    slurm = Slurm()
    slurm.comment = "theirs alone"
    known = flights(slurm)
    for at in (0, WAIT):
        known.step(look(first(), real(), at=NOW + at))

    assert {key: slurm.values[REAL].get(key) for key in PLACED} == PLACED


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_strangers_job_that_names_a_preflight_is_not_its_job(order: int) -> None:
    slurm = Slurm()
    known = flights(slurm)
    theirs = real(user=STRANGER, id=77)
    for at in (0, 1):
        known.step(look(first(), *[real(), theirs][::order], at=NOW + at))
    known.step(look(first(), real(), at=NOW + 9))
    assert slurm.done == [], "the stranger's job is gone, and the pre-flight has its own"
    known.step(look(first(), real(), theirs, at=NOW + WAIT))

    assert slurm.done == [f"annotate {REAL}", CANCELLED]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.sampled_from(["run", *"1234569"])), max_size=8))
def test_whatever_jobs_name_only_those_of_the_same_user_are_touched(jobs: list[tuple[int, int, str]]) -> None:
    """Jobs with a number, a user and a mark: no user's mark reaches another user's job."""
    of_user = {number: user for number, user, _ in jobs}
    marks = {number: mark for number, _, mark in jobs}
    slurm = Slurm()
    known = flights(slurm)
    facts = [
        waiting(number, "n1", 1, segment={"preflight": mark}, user=of_user[number]) for number, mark in marks.items()
    ]
    for at in (0.0, WAIT):
        known.step(look(*facts, at=NOW + at))

    assert {int(one.split()[-1]) for one in slurm.done if one.startswith("scancel ")} == {
        number for number, mark in marks.items() if mark == "run"
    }
    for number in slurm.values:
        assert of_user[number] == of_user[int(marks[number])]


@pytest.mark.parametrize("value", ["41", "run"])
def test_it_is_kept_in_the_segment_of_every_decision(value: str) -> None:
    for more in ({}, {"reservation": "r"}, {"tres_per_node": "gres/gpu:64"}):
        fields = submit(tres_per_node="gres/gpu:2", preflight=value, dependency="1", **{"flag.preflight": ""})
        wire.check_submit(wire.Message("submit", {**fields, **more}))
        decision = decide({**fields, **more}, book(look()), BerthPolicy(), Settings(), NOW)
        if "segment" in decision.fields:
            values = segment.fields(f"[berth/1 {decision.fields['segment']}]")
            assert values is not None
            assert values["preflight"] == value
            assert "not acted on yet" not in decision.fields["message"]


@pytest.mark.parametrize("value", ["", "0", "x", "41 ", "-1", "99999999999", "run]"])
def test_what_is_no_job_is_not_kept(value: str) -> None:
    assert not marks_preflight(value)


@pytest.mark.parametrize("value", ["", "10", "no", ",must", "1:30,must"])
def test_right_words_of_the_flag(value: str) -> None:
    check({"preflight": value})


@pytest.mark.parametrize("value", ["never", "10,may", "0,must", "no,must"])
def test_wrong_words_of_the_flag(value: str) -> None:
    with pytest.raises(FormatError, match="--preflight"):
        check({"preflight": value})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("FAILED", ["in its pre-flight: no_signature", "/home/a/41.out.preflight"]),
        ("CANCELLED", []),
        ("COMPLETED", []),
    ],
)
def test_why_tells_of_a_cancelled_job_what_its_preflight_failed_of(state: str, words: list[str]) -> None:
    outcome = Outcome(FIRST, FIRST, state, None, exit_code=1, logs=("/home/a/41.out.preflight",))

    found = " ".join(text for _, text in preflight_rows(outcome, shipped_rules()))
    assert [word for word in words if word not in found] == []
    assert bool(words) == bool(found)
