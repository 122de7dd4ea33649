# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail under berthd: what is written down, who is tried again, and what no restart forgets."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from policy.cli.jobs.why_failed import failure_rows
from policy.daemon.hear.accounts import AFTER, Accounts
from policy.daemon.hear.endings import AVOID_FOR, NodeWord
from policy.daemon.write.failures import WORD_WITHIN, Failures
from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, Reading
from policy.plan.answer.explain import rows
from policy.plan.jobs.waiting_jobs import nodes_avoided
from policy.plan.ledger.changes import Move
from policy.retry import history
from policy.retry.classify import Classification
from policy.retry.decision import Trial
from policy.retry.rules import shipped_rules
from policy.site.config import Config
from policy.slurm import changes
from policy.slurm.boots import boot_times
from policy.slurm.interface import Pin
from policy.slurm.outcomes import outcome
from tests.unit.guest_world import node as share_node
from tests.unit.guest_world import plan
from tests.unit.policy_world import NOW, node, reading, running, waiting

PLACED = {"state": "placed", "id": "00ff", "n": "1", "k": "1", "nodes": "n1", "gpus": "0", "seats": "1"}
NCCL = NodeWord(5, "n1", "mpi_runtime_failure", transient=True, sign="its log says: connection reset")
IMPORT = NodeWord(5, "n1", "import_error", transient=False, sign="its log says: modulenotfounderror")


@dataclass
class Slurm:
    """One job, how it ended, and what is done to it."""

    values: dict[str, str] = field(default_factory=lambda: dict(PLACED))
    state: str = "FAILED"
    exit_code: int = 1
    signal: int = 0
    restarts: int = 0
    may_requeue: bool = True
    nodes: tuple[str, ...] = ("n1",)
    ended: int = int(NOW)
    name: int | str = 5
    comment: str = ""
    refuses: str = ""
    dies_at: str = ""
    done: list[str] = field(default_factory=list)
    waits: int = 0
    accounting: str = "(null)"

    def _do(self, what: str) -> None:
        if what.startswith(self.refuses or "-"):
            raise SlurmError("Job/step already completing or completed")
        if what.startswith(self.dies_at or "-"):
            raise KeyboardInterrupt
        self.done.append(what)

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, self.state, 1_000, segment.put("", self.values), "", "n1", "gres/gpu:g0:1", "")

    def outcome(self, job_id: int) -> Outcome:
        return Outcome(
            job_id, self.name, self.state, JobPlan(self.values), "gpu", self.nodes, self.ended - 900, self.ended,
            self.exit_code, self.signal, self.restarts, self.may_requeue, comment=self.comment,
        )  # fmt: skip

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        self._do(f"annotate {job_id}")
        self.values = dict(plan.texts)

    def requeue(self, job: int | str) -> None:
        self._do(f"requeue {job}")
        self.state = "PENDING"
        self.restarts += 1

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        self._do(f"delay {job_id}")
        self.values, self.waits = dict(plan.texts), seconds

    def config(self) -> dict[str, str]:
        parameters = "batch_sched_delay=0,max_batch_requeue=7"
        return {
            "SchedulerParameters": parameters, "AccountingStorageType": self.accounting, "ClusterName": "c1",
        }  # fmt: skip


def job(**changes: object) -> JobFacts:
    return running(5, "n1", 1, 3_000, **{"segment": dict(PLACED), **changes})


def look(*jobs: JobFacts, at: float = NOW, nodes: list[NodeFacts] | None = None) -> Reading:
    return reading(nodes or [node("n1"), node("n2"), node("n3")], list(jobs), at=at)


def ended(slurm: Slurm, word: NodeWord | None = None, before: JobFacts | None = None, at: float = NOW) -> Failures:
    """The job ran, and runs no more; its node has spoken, or its time to speak is over."""
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    failures.watch(look(before or job(segment=slurm.values), at=at - 1))
    failures.watch(look(at=at))
    if word is not None:
        failures.hear(word, at)
    while failures.step(look(at=at), at + (0 if word else WORD_WITHIN)):
        pass
    return failures


def test_a_run_elsewhere_in_the_same_second_is_looked_into_too() -> None:
    slurm = Slurm(values={**PLACED, "f.retry": "auto"})
    first = replace(NCCL, start=slurm.ended - 900)
    failures = ended(slurm, first)
    assert failures.hear(first, NOW), "it need not say that again"
    slurm.state, slurm.nodes = "FAILED", ("n2",)
    assert not failures.hear(replace(first, node="n2"), NOW)
    failures.step(look(), NOW)
    assert failures.counts["failed"] == 2


def test_what_its_node_could_not_set_up_is_no_failure_of_the_job_also_by_a_late_word() -> None:
    slurm = Slurm(values={**PLACED, "f.retry": "auto"})
    word = replace(NCCL, degraded=True, start=slurm.ended - 900)

    failures = ended(slurm, word)
    assert (failures.counts, slurm.done) == ({}, [])
    assert failures.hear(word, NOW), "it need not say that again"


def test_a_late_word_about_an_earlier_run_leaves_the_one_that_runs_alone() -> None:
    slurm = Slurm()
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(), at=NOW))
    failures.hear(replace(NCCL, degraded=True, start=1), NOW)
    failures.watch(look(at=NOW + 1))
    while failures.step(look(at=NOW + 1), NOW + 1 + WORD_WITHIN):
        pass
    assert failures.counts["failed"] == 1


@pytest.mark.parametrize("k", ["1", "3", "8"])
def test_a_suspected_node_is_avoided_by_jobs_of_any_size(k: str) -> None:
    slurm = Slurm(values={**PLACED, "k": k, "f.retry": "auto"})
    broken = NodeWord(5, "n1", "cuda_init_failed", transient=True, sign="its log says: no cuda-capable device")
    ended(slurm, broken)
    assert slurm.values["avoids"].startswith("n1@")


def class_told(failures: Failures) -> str:
    return next(key.removeprefix("failed.") for key in failures.counts if "." in key)


def test_the_class_of_a_failed_job_is_counted_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm()

    failures = ended(slurm, IMPORT)
    assert slurm.done == []
    assert failures.counts == {"failed": 1, "retried": 0, "failed.import_error": 1}
    assert f"JobId=5 failed: import_error, {IMPORT.sign}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "exit_code", "signal", "word", "failure"),
    [
        ("FAILED", 1, 0, IMPORT, "import_error"),
        ("FAILED", 1, 0, None, "no_signature"),
        ("FAILED", 127, 0, None, "semantic_error"),
        ("FAILED", 0, 11, None, "invalid_mem_access"),
        ("OUT_OF_MEMORY", 0, 125, IMPORT, "cpu_out_of_memory"),
        ("NODE_FAIL", 1, 0, None, "mpi_runtime_failure"),
        ("PREEMPTED", 0, 15, None, "job_preempted"),
    ],
)
def test_what_slurm_knows_stands_above_the_log_and_the_log_above_the_exit_code(
    state: str, exit_code: int, signal: int, word: NodeWord | None, failure: str
) -> None:
    slurm = Slurm(state=state, exit_code=exit_code, signal=signal)
    assert class_told(ended(slurm, word)) == failure


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE"])
def test_a_job_that_did_not_fail_is_left_alone(state: str) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, state)

    ended(slurm, NCCL)
    assert slurm.done == []


def test_a_node_is_waited_for_no_longer_than_its_time() -> None:
    slurm = Slurm()
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(), at=NOW - 1))
    failures.watch(look())
    assert failures.step(look(), NOW) == 5
    assert failures.step(look(), NOW + WORD_WITHIN - 1) == 0
    assert slurm.done == []
    failures.hear(IMPORT, NOW + 3)
    assert failures.step(look(), NOW + 3) == 5
    assert class_told(failures) == "import_error"


def test_retry_requeues_what_passes_by_itself_away_from_where_it_failed() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"})

    failures = ended(slurm, NCCL)
    assert slurm.done == ["requeue 5", "delay 5"]
    assert {key: slurm.values[key] for key in PLACED} == PLACED
    assert slurm.values["fail"] == "mpi_runtime_failure"
    assert slurm.waits == 60
    assert slurm.values["again"] == str(int(NOW) + 60)
    assert nodes_avoided(JobPlan(slurm.values), NOW) == {"n1": NOW + AVOID_FOR}
    assert failures.counts["retried"] == 1
    shown = dict(rows(5, "PENDING", JobPlan(slurm.values)))
    assert shown["last failed"].startswith("mpi_runtime_failure: a peer")
    assert shown["known by"] == NCCL.sign
    assert shown["try again"].startswith("yes: ")
    assert "try 2 of 4" in shown["try again"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"may_requeue": False}, "--no-requeue"),
        ({"restarts": 7}, "max_batch_requeue"),
        ({"values": {**PLACED, "f.retry": "0"}}, "1 tries in a row"),
    ],
)
def test_slurms_limits_and_the_users_hold(
    changes: dict[str, object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Slurm(**{"values": {**PLACED, "f.retry": "3"}, **changes})  # type: ignore[arg-type]

    ended(slurm, NCCL)
    assert slurm.done == []
    assert reason in capsys.readouterr().err


def test_a_class_that_does_not_pass_by_itself_is_never_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm({**PLACED, "f.retry": "9"})

    ended(slurm, IMPORT)
    assert slurm.done == []
    said = capsys.readouterr().err
    assert "JobId=5 is not tried again: a module or package is not installed" in said
    assert IMPORT.sign in said


def test_tries_are_counted_over_restarts_of_berthd_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm({**PLACED, "f.retry": "2"})
    for run in range(3):
        # A job that got further each time, on other nodes: only the count ends it.
        slurm.state, slurm.ended, slurm.nodes = "FAILED", int(NOW) + 1_000 * run, (f"n{run + 1}",)
        ended(slurm, NCCL, at=NOW + 1_000 * run)
    assert slurm.done.count("requeue 5") == 2
    assert slurm.state == "FAILED"
    assert "3 tries in a row" in capsys.readouterr().err


def speaks(slurm: Slurm, word: NodeWord, failures: Failures | None = None) -> bool:
    """A node speaks to a berthd that may not have seen the job run; whether it need not speak again."""
    failures = failures or Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look())
    failures.hear(word, NOW)
    while failures.step(look(), NOW):
        pass
    return failures.hear(word, NOW + 1)


@pytest.mark.parametrize("dies_at", ["requeue", "delay"])
def test_wherever_berthd_dies_the_job_is_tried_again_once(dies_at: str) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, dies_at=dies_at)
    with pytest.raises(KeyboardInterrupt):
        speaks(slurm, NCCL)
    slurm.dies_at = ""
    assert speaks(slurm, NCCL)
    assert speaks(slurm, NCCL)

    assert slurm.done.count("requeue 5") == 1
    assert slurm.state == "PENDING"


def test_a_node_speaks_until_the_job_has_ended_on_its_other_nodes() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, "COMPLETING")
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]

    assert not speaks(slurm, NCCL, failures)
    slurm.state = "FAILED"
    assert failures.step(look(), NOW + 1.5) == 5

    assert failures.hear(NCCL, NOW + 2)
    assert slurm.done == ["requeue 5", "delay 5"]


def test_a_word_of_an_earlier_run_says_nothing_of_this_one() -> None:
    slurm = Slurm(exit_code=127)
    failures = ended(slurm, replace(IMPORT, start=slurm.ended - 5_000), at=NOW)
    failures.step(look(), NOW + WORD_WITHIN)

    assert class_told(failures) == "semantic_error"


@pytest.mark.parametrize(
    ("at_once", "soon", "failure"),
    [(False, False, "mpi_runtime_failure"), (True, False, "mpi_runtime_failure"), (True, True, "job_preempted")],
    ids=["lost", "lost, and its node is read later", "told to go"],
)
def test_a_job_that_slurm_put_back_is_noted(at_once: bool, soon: bool, failure: str) -> None:
    slurm = Slurm({**PLACED, "f.retry": "1"}, "PENDING", exit_code=0)
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    back = waiting(5, "n1", 1, segment=slurm.values)
    there = look(back, nodes=[node("n1", lost=not at_once), node("n2")])
    failures.watch(there)
    assert failures.step(there, NOW) == 5
    later = look(back, at=NOW + 2, nodes=[node("n1", lost=not soon), node("n2")])
    failures.watch(later)
    failures.step(later, NOW + 2)

    assert slurm.done == ["annotate 5"]
    assert slurm.values["fail"] == failure
    # Who was pushed out loses no try.
    assert len(history.trials(JobPlan(slurm.values))) == 1


def test_where_many_nodes_are_looked_at_seldom_a_lost_one_is_waited_for() -> None:
    slurm = Slurm({**PLACED, "f.retry": "1"}, "PENDING", exit_code=0)
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    back = waiting(5, "n1", 1, segment=slurm.values)
    for after in (0, 3, 7):
        nodes = [node("n1", lost=after > 5), node("n2")]
        there = replace(look(back, at=NOW + after, nodes=nodes), nodes_late=6.0)
        failures.watch(there)
        failures.step(there, NOW + after)

    assert slurm.values["fail_text"] == "node n1 was lost"


@pytest.mark.parametrize("seen_running", [True, False], ids=["was seen to run", "was not"])
@pytest.mark.parametrize("still_ends_on", [(), ("n2",)])
def test_the_node_that_was_lost_is_known_though_slurm_names_only_where_the_job_still_ends(
    still_ends_on: tuple[str, ...], seen_running: bool
) -> None:
    slurm = Slurm({**PLACED, "n": "2", "nodes": "n1,n2"}, "PENDING", exit_code=0)
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    before = replace(job(segment=slurm.values), nodes=("n1", "n2"))
    nodes = [node("n1", up=False, lost=True), node("n2")]
    if seen_running:
        failures.watch(look(before, at=NOW - 2))
    failures.watch(look(replace(before, state="COMPLETING", nodes=still_ends_on), at=NOW - 1, nodes=nodes))
    back = look(waiting(5, "n1", 1, segment=slurm.values), at=NOW + 2, nodes=nodes)
    failures.watch(back)
    failures.step(back, NOW + 2)

    assert slurm.values["fail"] == "mpi_runtime_failure"
    assert slurm.values["fail_text"] == "node n1 was lost"


@pytest.mark.parametrize(
    ("booted", "failure", "text"),
    [
        (NOW - 50, "mpi_runtime_failure", "node n1 booted while it ran"),
        (NOW - 90_000, "job_preempted", "it was put back into the queue from outside"),
        (None, "job_preempted", "it was put back into the queue from outside"),
    ],
    ids=["while it ran", "before", "is not known"],
)
def test_a_node_that_booted_has_lost_its_job_though_slurm_never_called_it_down(
    booted: float | None, failure: str, text: str
) -> None:
    slurm = Slurm({**PLACED, "f.retry": "1"}, "PENDING", exit_code=0)

    def boots(names: Iterable[str]) -> dict[str, int]:
        if booted is None:
            raise SlurmError("Unable to contact slurm controller")
        return {name: int(booted) for name in names}

    failures = Failures(slurm, slurm.outcome, ask_boots=boots)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    back = look(waiting(5, "n1", 1, segment=slurm.values), at=NOW)
    failures.watch(back)
    failures.step(replace(back, at=NOW + 2), NOW + 2)

    assert (slurm.values["fail"], slurm.values["fail_text"]) == (failure, text)


def test_slurms_json_says_when_a_node_booted() -> None:
    def run(*words: str) -> bytes:
        assert words == ("scontrol", "show", "node", "n1,n2", "--json")
        told = {"set": True, "infinite": False, "number": 1_700_000_000}
        return json.dumps({"nodes": [{"name": "n1", "boot_time": told}, {"name": "n2", "boot_time": {}}]}).encode()

    assert boot_times(["n1", "n2"], run) == {"n1": 1_700_000_000}


@pytest.mark.parametrize("key", ["evicted", "degraded"])
def test_what_berth_itself_puts_back_did_not_fail(key: str) -> None:
    slurm = Slurm({**PLACED, key: "1"}, "PENDING")
    ended(slurm, before=job())
    assert slurm.done == []


def test_a_share_that_could_not_be_set_up_is_no_failure_of_the_job() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"})
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.leave(5, NOW)

    assert speaks(slurm, NCCL, failures)
    assert slurm.done == []
    assert failures.counts == {}


def test_a_job_that_waits_for_its_next_try_is_pinned_elsewhere_before_it_may_start() -> None:
    until = {"again": str(int(NOW) + 60), "avoids": f"n1@{int(NOW) + 900}"}
    back = {"reason": "BeginTime", "begin": int(NOW) + 60}
    nodes = [share_node("n1"), share_node("n2")]

    [move] = plan(nodes, [waiting(5, "n1", 1, **back, segment=until)])

    assert isinstance(move, Move)
    assert move.berth.names == ("n2",)
    # One that is pinned elsewhere already, or was begun later by its user, is left alone.
    assert plan(nodes, [waiting(5, "n2", 1, **back, segment=until)]) == []
    assert plan(nodes, [waiting(5, "n1", 1, **back, segment={"avoids": until["avoids"]})]) == []


def test_a_task_of_an_array_is_requeued_by_its_own_name() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, name="3_7")

    ended(slurm, NCCL)

    assert slurm.done == ["requeue 3_7", "delay 5"]


def test_a_job_whose_user_named_its_nodes_is_not_kept_from_them() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto", "asked": "tres_per_job:gres/gpu:1;req_nodes:n1"})

    ended(slurm, NCCL)

    assert "avoids" not in slurm.values
    assert "requeue 5" in slurm.done


def test_what_slurm_refuses_is_said_and_not_tried_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, refuses="requeue")

    ended(slurm, NCCL)

    assert slurm.done == []
    assert "JobId=5" in capsys.readouterr().err


@dataclass
class Process:
    """A sacctmgr that ends when the test says so."""

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9

    def wait(self) -> int:
        return self.returncode or 0


def test_a_class_that_slurmctld_does_not_take_goes_into_the_accounting(capsys: pytest.CaptureFixture[str]) -> None:
    run: list[list[str]] = []
    processes = [Process() for _ in range(9)]

    def start(words: list[str]) -> Any:
        run.append(words)
        return processes[len(run) - 1]

    slurm, accounts = Slurm(accounting="accounting_storage/slurmdbd"), Accounts(start)
    failures = Failures(slurm, slurm.outcome, accounts)  # type: ignore[arg-type]
    failures.hear(IMPORT, NOW)
    failures.step(look(), NOW)
    failures.step(look(), NOW + AFTER - 1)
    assert run == []
    failures.step(look(), NOW + AFTER)

    [words] = run
    assert words[:8] == ["sacctmgr", "-i", "-Q", "modify", "job", "where", "jobid=5", "cluster=c1"]
    written = segment.fields(words[-1].removeprefix("AdminComment="))
    assert written is not None
    assert (written["fail"], written["id"]) == ("import_error", PLACED["id"])
    # One that hangs is ended; of what goes wrong one line is enough.
    for number in range(8):
        accounts.note(number, "x", slurm.config(), NOW + AFTER)
    accounts.tend(NOW + 3 * AFTER)
    assert len(run) == 4
    accounts.tend(NOW + 100)
    assert len(run) == 8
    assert processes[0].returncode == -9
    assert capsys.readouterr().err.count("sacctmgr cannot write") == 1


def test_without_accounting_there_is_nobody_to_tell() -> None:
    run: list[list[str]] = []
    accounts = Accounts(run.append)  # type: ignore[arg-type]
    accounts.note(5, "x", {"AccountingStorageType": "accounting_storage/none"}, NOW)
    accounts.tend(NOW + AFTER)

    assert run == []


def test_berth_why_shows_the_line_to_those_who_may_read_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, link = tmp_path / "5.out", tmp_path / "link"
    log.write_text("starts\nModuleNotFoundError: No module named 'apex'\n")
    link.symlink_to(log)
    found = Outcome(
        5, 5, "FAILED", JobPlan({**PLACED, "f.retry": "auto"}), "gpu", ("n1",), 100, 160, 1, logs=(str(log),)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    shown = dict(failure_rows(found, shipped_rules()))
    assert shown["failed"] == "import_error: a module or package is not installed"
    assert shown["known by"] == "ModuleNotFoundError: No module named 'apex'"
    assert shown["try again"].startswith("no: ")
    # Only a file of its own is opened, and root opens nothing at all.
    for logs in ((str(link),), (str(tmp_path),), (str(tmp_path / "none"),)):
        assert dict(failure_rows(replace(found, logs=logs), shipped_rules()))["failed"].startswith("no_signature")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert dict(failure_rows(found, shipped_rules()))["failed"].startswith("no_signature")
    assert "try again" not in dict(failure_rows(replace(found, plan=JobPlan(PLACED)), shipped_rules()))


def test_history_keeps_the_last_runs_and_counts_the_others() -> None:
    one = Trial(Classification("cuda_failure", transient=True, reason=""), tuple(f"n{k}" for k in range(40)), 7.6)
    text = history.written([one] * 30)

    assert len(history.trials(text)) == 30
    assert [len(run.nodes) for run in history.trials(text)][-7:] == [0, 8, 8, 8, 8, 8, 8]
    assert history.trials(JobPlan({"tried": "no_such_class:3:n1;cuda_failure:x:n1;;cuda_failure:4:"}))[0].ran_s == 4.0


def record(**changes: object) -> bytes:
    values: dict[str, object] = {
        "job_id": 5,
        "job_state": ["FAILED"],
        "admin_comment": segment.put("site", PLACED),
        "partition": "gpu",
        "nodes": "n[1-2]",
        "start_time": {"set": True, "infinite": False, "number": 100},
        "end_time": {"set": True, "infinite": False, "number": 160},
        "exit_code": {"status": ["SIGNALED"], "return_code": {"set": False, "number": 0},
                      "signal": {"id": {"set": True, "number": 11}, "name": "Segmentation fault"}},
        "restart_cnt": 2,
        "requeue": True,
        "batch_flag": True,
        "array_job_id": {"set": True, "number": 0},
        "array_task_id": {"set": False, "number": 0},
    }  # fmt: skip
    return json.dumps({"jobs": [{**values, **changes}]}).encode()


def test_an_outcome_is_read_from_slurms_json() -> None:
    found = outcome(5, lambda *_: record())

    assert found == Outcome(5, 5, "FAILED", JobPlan(PLACED), "gpu", ("n1", "n2"), 100, 160, 0, 11, 2, may_requeue=True)
    task = outcome(
        5, lambda *_: record(array_job_id={"set": True, "number": 5}, array_task_id={"set": True, "number": 0})
    )
    assert task == replace(found, name="5_0")
    assert not outcome(5, lambda *_: record(batch_flag=False)).may_requeue
    assert outcome(5, lambda *_: record().replace(b"site", b"si\xffte")).plan == JobPlan(PLACED)
    with pytest.raises(SlurmError, match="not known to Slurm"):
        outcome(6, lambda *_: record())


def test_a_pin_keeps_what_was_noted_of_a_failure_after_its_plan_was_made() -> None:
    text = JobText(
        id=7,
        state="PENDING",
        user_id=1000,
        admin_comment="theirs [berth/1 state=waiting id=0000000000000007 nodes=n1 fail=mpi_runtime_failure fail_at=9]",
        extra="",
        required="",
        tres_per_node="gres/gpu:1",
        tres_per_job="",
    )

    made = changes.pin(text, Pin(("n2",), (0,), seats=True, plan=JobPlan({"state": "placed", "nodes": "n2"})))

    failed = {"fail": "mpi_runtime_failure", "fail_at": "9"}
    assert segment.fields(made["admin_comment"]) == {"state": "placed", "nodes": "n2", **failed}
    assert made["admin_comment"].startswith("theirs ")
