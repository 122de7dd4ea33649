"""What berthd makes of pre-flights: who waits for whom, for how long, and what is told when one fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.why_failed import preflight_rows
from policy.daemon.hear.accounts import AFTER, Accounts
from policy.daemon.hear.endings import shipped_rules
from policy.daemon.write.preflights import REMEMBERED, Preflights, without
from policy.formats import preflight_mark, segment, wire
from policy.formats.errors import FormatError, SlurmError
from policy.formats.flags import check
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.answer.explain import rows
from policy.request.settings import Settings
from policy.retry.classify import Classification
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting

PLACED = {"state": "placed", "id": "00ff", "n": "1", "k": "1", "nodes": "n1", "gpus": "0", "seats": "1"}
IMPORT = Classification("import_error", transient=False, reason="line 3", sign="its log says: modulenotfounderror")
REAL, FIRST, WAIT = 42, 41, 60.0


class Slurm:
    """What is asked of Slurm, and the real job's record."""

    def __init__(self, state: str = "PENDING", depends: str = f"afterok:{FIRST}(unfulfilled)") -> None:
        self.state = state
        self.depends = depends
        self.values: dict[str, str] = {**PLACED, "preflight": str(FIRST)}
        self.done: list[str] = []
        self.ended: list[JobFacts] = []
        self.looks = 0

    def read(self, *, ended: bool) -> Reading:
        assert ended
        self.looks += 1
        return look(flying(), *self.ended)

    def run(self, *words: str) -> bytes:
        if words[:3] == ("scontrol", "show", "job"):
            return f"JobId={REAL} JobName=x\n   Dependency={self.depends}\n".encode()
        self.done.append(" ".join(words))
        return b""

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, self.state, 1_000, segment.put("theirs", self.values), "", "n1", "gres/gpu:g0:1", "")

    def annotate(self, _: int, plan: JobPlan) -> None:
        if self.state != "PENDING":
            raise SlurmError("Job/step already completing or completed")
        self.values = dict(plan.texts)


def flights(slurm: Slurm, accounts: Accounts | None = None) -> Preflights:
    return Preflights(slurm, accounts or Accounts(), WAIT, slurm.run)  # type: ignore[arg-type]


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
    slurm = Slurm(depends=f"afterok:{FIRST}(unfulfilled),afterany:7(unfulfilled)")
    known = flights(slurm)
    for at in (0, WAIT - 1):
        known.step(look(first(), real(), at=NOW + at))
    assert slurm.done == []

    for _ in range(2):
        known.step(look(first(), real(), at=NOW + WAIT))

    assert slurm.done == [f"scontrol update JobId={REAL} Dependency=afterany:7", f"scancel {FIRST}"]
    shown = dict(rows(REAL, "PENDING", JobPlan(slurm.values)))
    assert shown["pre-flight"] == f"job {FIRST} did not begin within 60 s, so that the job goes on without it"


@pytest.mark.parametrize("reason", ["Dependency", "BeginTime"])
def test_one_that_waits_as_its_job_would_keeps_it_no_longer_than_that(reason: str) -> None:
    slurm = Slurm()
    known = flights(slurm)
    for at in (0.0, 10 * WAIT):
        known.step(look(first(reason=reason), real(), at=NOW + at))
    known.step(look(flying(), real(), at=NOW + 20 * WAIT))

    assert slurm.done == []


def test_a_preflight_whose_job_was_cancelled_before_a_reading_showed_it_is_ended() -> None:
    slurm = Slurm("CANCELLED")
    slurm.ended = [real(state="CANCELLED")]
    known = flights(slurm)
    for at in (0, 4):
        known.step(look(flying(), at=NOW + at))
    assert (slurm.done, slurm.looks) == ([], 0), "its job may be about to be submitted"

    for at in (6, 9, 12):
        known.step(look(flying(), at=NOW + at))

    assert (slurm.done, slurm.looks) == ([f"scancel {FIRST}"], 1)


def test_a_preflight_without_any_job_is_left_to_its_limit_and_looked_for_once() -> None:
    slurm = Slurm()
    known = flights(slurm)
    for at in range(0, 60, 6):
        known.step(look(flying(), at=NOW + at))

    assert (slurm.done, slurm.looks) == ([], 1)


def test_a_preflight_whose_job_is_gone_is_ended_once() -> None:
    slurm = Slurm()
    known = flights(slurm)
    known.step(look(flying(), real()))
    for at in (1, 5, 9):
        known.step(look(flying(), at=NOW + at))
    assert slurm.done == [], "a reading that leaves the job out does not mean that it is over"
    slurm.state = "CANCELLED"
    for at in (15, 16):
        known.step(look(flying(), at=NOW + at))

    assert slurm.done == [f"scancel {FIRST}"]


def test_a_preflight_whose_job_has_not_been_seen_is_left_alone() -> None:
    slurm = Slurm()
    known = flights(slurm)
    for at in (0, 10, 100):
        known.step(look(flying(), at=NOW + at))

    assert slurm.done == []


def test_what_it_failed_of_is_written_into_a_job_that_still_waits() -> None:
    slurm = Slurm()
    known = flights(slurm)
    known.step(look(flying(), real()))
    known.failed(FIRST, 0, IMPORT, {}, NOW + 1)

    assert slurm.values["preflight_fail"] == "import_error"
    assert {key: slurm.values[key] for key in PLACED} == PLACED


def test_what_it_failed_of_goes_into_the_accounting_of_a_job_that_slurm_has_ended() -> None:
    slurm = Slurm(state="CANCELLED")
    ran: list[list[str]] = []

    def start(words: list[str]) -> None:
        ran.append(words)
        raise OSError

    accounts = Accounts(start)  # type: ignore[arg-type]
    known = flights(slurm, accounts)
    known.step(look(flying(), real()))
    known.step(look(at=NOW + 1))
    known.failed(
        FIRST, 0, IMPORT, {"AccountingStorageType": "accounting_storage/slurmdbd", "ClusterName": "c"}, NOW + 60
    )
    accounts.tend(NOW + 60 + AFTER)

    [words] = ran
    assert f"jobid={REAL}" in words
    assert words[-1].startswith("AdminComment=theirs[berth/1 ")
    assert "preflight_fail=import_error" in words[-1]
    assert known.told == {"preflights": "0", "preflights_over": "1", "preflights_failed": "1"}


STRANGER = 7
"""The user of a job that names another user's pre-flight; `first` and `real` have user 0."""


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_strangers_job_that_names_a_preflight_is_not_its_job(order: int) -> None:
    slurm = Slurm(depends=f"afterok:{FIRST}(unfulfilled)")
    known = flights(slurm)
    theirs = real(user=STRANGER, id=77)
    for at in (0, 1):
        known.step(look(first(), *[real(), theirs][::order], at=NOW + at))
    known.step(look(first(), real(), at=NOW + 9))
    assert slurm.done == [], "the stranger's job is gone, and the pre-flight has its own"
    known.step(look(first(), real(), theirs, at=NOW + WAIT))

    assert slurm.done == [f"scontrol update JobId={REAL} Dependency=", f"scancel {FIRST}"]


def test_a_strangers_job_alone_neither_ends_a_preflight_nor_reads_what_it_failed_of() -> None:
    slurm = Slurm("CANCELLED")
    slurm.ended = [real(user=STRANGER, state="CANCELLED")]
    known = flights(slurm)
    known.step(look(first(), real(user=STRANGER)))
    for at in (9, WAIT, 2 * WAIT):
        known.step(look(flying(), at=NOW + at))
    assert slurm.done == []
    slurm.state = "PENDING"
    known.failed(FIRST, 0, IMPORT, {}, NOW + 2 * WAIT)

    assert "preflight_fail" not in slurm.values


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.sampled_from(["run", *"1234569"])), max_size=8))
def test_whatever_jobs_name_only_those_of_the_same_user_are_touched(jobs: list[tuple[int, int, str]]) -> None:
    """Jobs with a number, a user and a mark, some gone after a while: no user's mark reaches another user's job."""
    of_user = {number: user for number, user, _ in jobs}
    marks = {number: mark for number, _, mark in jobs}
    slurm = Slurm("CANCELLED", depends="afterok:1")
    known = flights(slurm)
    facts = [
        waiting(number, "n1", 1, segment={"preflight": mark}, user=of_user[number]) for number, mark in marks.items()
    ]
    for at in (0.0, 5.0, WAIT, WAIT + 5):
        known.step(look(*facts, at=NOW + at))
    for kept in range(len(facts)):
        known.step(look(*facts[kept:], at=NOW + WAIT + 9 * (kept + 2)))

    for one in filter(lambda text: text.startswith("scancel "), slurm.done):
        target = int(one.split()[1])
        assert marks[target] == "run"
        assert of_user[target] in {of_user[number] for number, mark in marks.items() if mark == str(target)}


def test_no_memory_lasts_for_ever() -> None:
    slurm = Slurm()
    known = flights(slurm)
    known.step(look(flying(), real()))
    known.step(look(at=NOW + 2 * REMEMBERED))
    known.failed(FIRST, 0, IMPORT, {}, NOW + 2 * REMEMBERED)

    assert "preflight_fail" not in slurm.values


jobs = st.integers(1, 99).map(str)
kinds = st.sampled_from(["after", "afterok", "afterany", "aftercorr", "afternotok"])
dependencies = st.lists(st.tuples(kinds, st.lists(jobs, min_size=1, max_size=3)), max_size=4)


@given(dependencies, st.integers(1, 99))
def test_only_one_job_is_taken_out_of_dependencies(all_of_them: list[tuple[str, list[str]]], number: int) -> None:
    shown = ",".join(":".join([kind, *(f"{job}(unfulfilled)" for job in jobs)]) for kind, jobs in all_of_them)
    left = without(shown or "(null)", number)

    expected = [(kind, [job for job in jobs if job != str(number)]) for kind, jobs in all_of_them]
    assert left == ",".join(":".join([kind, *jobs]) for kind, jobs in expected if jobs)


def test_singleton_stays() -> None:
    assert without("singleton(unfulfilled),afterok:7(unfulfilled)", 7) == "singleton"


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
    assert not preflight_mark.is_value(value)


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
        ("CANCELLED", [f"job {FIRST}, which was cancelled"]),
        ("TIMEOUT", ["which was timeout"]),
        ("COMPLETED", []),
    ],
)
def test_why_tells_of_a_cancelled_job_what_its_preflight_failed_of(state: str, words: list[str]) -> None:
    def ask(number: int) -> Outcome:
        return Outcome(number, number, state, None, exit_code=1, logs=("/home/a/41.out.preflight",))

    found = " ".join(text for _, text in preflight_rows(FIRST, JobPlan({}), ask, shipped_rules))
    assert [word for word in words if word not in found] == []
    assert bool(words) == bool(found)


def test_why_knows_what_berthd_wrote_when_slurm_has_forgotten() -> None:
    def ask(number: int) -> Outcome:
        raise SlurmError(f"job {number} is not known to Slurm (any more)")

    values = {"preflight_fail": "import_error", "preflight_sign": IMPORT.sign}
    shown = dict(preflight_rows(FIRST, JobPlan(values), ask, shipped_rules))
    assert shown["failed"].startswith("in its pre-flight: import_error")
    assert shown["known by"] == IMPORT.sign
    assert preflight_rows(FIRST, JobPlan({}), ask, shipped_rules) == []
