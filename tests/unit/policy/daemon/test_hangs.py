# SPDX-License-Identifier: Apache-2.0
"""Jobs that hang: what nodes say, what berthd makes of it, who reads it, and when such a job is requeued."""

from dataclasses import replace

import pytest

from policy.cli.jobs.queue import _because
from policy.daemon.hear.still import Hang, StillJobs, StillWord, read_word
from policy.daemon.passes.overviews import moment_of, overview_of
from policy.daemon.write.failures import Failures
from policy.daemon.write.hangs import Hangs
from policy.formats.errors import NoAnswer
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobFacts
from policy.site.overview import hang_text, running_of
from prolog_epilog.looks.still import RankSeen, StillNotice
from tests.unit.policy.daemon.test_overviews import planned
from tests.unit.policy.daemon.test_retry_daemon import NCCL, PLACED, Slurm, look
from tests.unit.policy.daemon.test_retry_others import silent
from tests.unit.policy_world import NOW, node, running

BEGUN = int(NOW) - 7_200
RANKS = ((0, 900, True), (1, 900, True), (2, 900, False))
HANG = Hang(int(NOW) - 900, 600, "n1:2 runs no kernel while the others wait")


def word(name: str = "n1", ranks: tuple[tuple[int, int, bool], ...] = RANKS, still: int = 700) -> StillWord:
    return StillWord(name, 5, still, 600, ranks)


def job(*nodes: str, **changes: object) -> JobFacts:
    return running(5, "n1", 0b111, 3_000, **{"start": BEGUN, "nodes": nodes or ("n1",), **changes})


def heard(*words: StillWord, at: float = NOW) -> StillJobs:
    found = StillJobs()
    for one in words:
        found.hear(one, at)
    return found


def test_what_a_node_says_is_read_as_it_is_written() -> None:
    ranks = (RankSeen(0, 12, busy=True), RankSeen(63, -1, busy=False))
    text = StillNotice("n1", 5, 700.4, 600.0, ranks).text

    assert read_word(text.encode()) == StillWord("n1", 5, 700, 600, ((0, 12, True), (63, -1, False)))


@pytest.mark.parametrize(
    "change", [("job=5", "job=0"), ("node=n1", "node=n 1"), ("0:12:1", "64:12:1"), ("0:12:1", "0:12:2"), ("0:12:1", "")]
)
def test_what_is_no_such_notice(change: tuple[str, str]) -> None:
    assert read_word("berth/1 still node=n1 job=5 for=7 allowed=6 ranks=0:12:1".replace(*change).encode()) is None


def test_a_job_hangs_once_all_of_its_nodes_say_so() -> None:
    found = heard(word())
    assert found.hangs([job("n1", "n2")], NOW) == {}
    found.hear(word("n2", ((0, 900, True),), still=650), NOW + 10)

    assert found.hangs([job("n1", "n2")], NOW + 10) == {
        5: Hang(int(NOW) - 640, 600, "n1:2 runs no kernel while the others wait")
    }
    assert found.hangs([job("n1", "n2")], NOW + 155) == {}


@pytest.mark.parametrize(
    "changes",
    [{"state": "COMPLETING"}, {"share": 50}, {"guest": True}, {"start": int(NOW) - 300}, {"id": 6}],
)
def test_these_do_not_hang(changes: dict[str, object]) -> None:
    assert heard(word()).hangs([job(**changes)], NOW) == {}


@pytest.mark.parametrize(
    ("ranks", "behind"),
    [
        (((0, 9, True), (1, 8, True), (2, 9, True)), "n1:1 ended fewer steps than the others"),
        (((0, 9, True), (1, 9, True), (2, 9, True)), ""),
        (((0, 9, False), (1, 9, False), (2, 9, True)), ""),
        (((0, -1, True), (1, -1, False), (2, -1, True)), ""),
        (((0, 9, True),), ""),
    ],
)
def test_which_rank_is_behind(ranks: tuple[tuple[int, int, bool], ...], behind: str) -> None:
    assert heard(word(ranks=ranks)).hangs([job()], NOW)[5].behind == behind


def test_the_overview_and_the_queue_tell_it() -> None:
    moment = moment_of(*planned([node("n1", used=0b111)], [job()]), told={5: {"hangs": HANG._asdict()}})
    assert moment is not None
    (told,) = overview_of(moment)["jobs"]

    assert told["hangs"] == HANG._asdict()
    assert _because(told).endswith("n1:2 runs no kernel while the others wait")
    assert hang_text(told["hangs"], NOW).startswith(
        "nothing has moved for 15 min, and its own rhythm explains 10; n1:2"
    )


def hanging(slurm: Slurm, times: int = 1) -> Hangs:
    found = Hangs(Failures(slurm, slurm.outcome))  # type: ignore[arg-type]
    for _ in range(times):
        reading = look(job(segment=slurm.values, start=slurm.ended - 900))
        found.step({5: HANG}, reading)
    return found


def test_a_hang_is_told_once_and_by_itself_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm(state="RUNNING")
    found = hanging(slurm, times=3)

    assert capsys.readouterr().err.count("JobId=5 hangs: nothing has moved for 15 min") == 1
    assert slurm.done == []
    assert found.counts == {"hanging": 1}
    found.step({}, look())
    assert found.counts == {}


def test_where_its_user_wants_that_it_is_requeued_as_after_a_failure() -> None:
    slurm = Slurm({**PLACED, "f.on-hang": "requeue"}, state="RUNNING")
    hanging(slurm, times=2)

    assert slurm.done == ["requeue 5", "delay 5"]
    assert (slurm.values["fail"], slurm.waits) == ("mpi_runtime_failure", 60)


@pytest.mark.parametrize(
    "changes",
    [{"may_requeue": False}, {"restarts": 7}, {"comment": "auto_resume_mode=1"}, {"values": {"f.retry": "0"}}],
)
def test_the_bounds_of_retries_hold(changes: dict[str, object]) -> None:
    values = {**PLACED, "f.on-hang": "requeue", **changes.pop("values", {})}  # type: ignore[dict-item]
    slurm = Slurm(values, state="RUNNING", **changes)  # type: ignore[arg-type]
    failures = Failures(slurm, slurm.outcome, others=("auto_resume_mode",))  # type: ignore[arg-type]
    Hangs(failures).step({5: HANG}, look(job(segment=slurm.values, start=slurm.ended - 900)))

    assert slurm.done == []


def test_the_requeue_counts_as_one_try_and_its_end_as_none() -> None:
    slurm = Slurm({**PLACED, "f.on-hang": "requeue"}, state="RUNNING")
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    before = look(job(segment=slurm.values, start=slurm.ended - 900))
    failures.watch(before)
    Hangs(failures).step({5: HANG}, before)
    failures.watch(look())
    while failures.step(look(), NOW + 700):
        pass

    assert slurm.values["tried"].count("mpi_runtime_failure") == 1
    assert slurm.done == ["requeue 5", "delay 5"]


class Refusing(Slurm):
    """Slurm, which does not requeue job 5, such as a part of a heterogeneous job."""

    def outcome(self, job_id: int) -> Outcome:
        return replace(super().outcome(job_id), name=job_id)


def test_a_job_that_slurm_does_not_requeue_keeps_no_other_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Refusing({**PLACED, "f.on-hang": "requeue", "f.retry": "auto"}, state="RUNNING", refuses="requeue 5")
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    both = look(*(job(id=one, segment=slurm.values, start=slurm.ended - 900) for one in (5, 6)))
    failures.watch(both)
    hangs = Hangs(failures)
    for _ in range(3):
        slurm.state = "RUNNING"
        hangs.step({5: HANG, 6: HANG}, both)

    assert slurm.done == ["requeue 6", "delay 6"]
    assert capsys.readouterr().err.count("JobId=5 hangs and could not be requeued: Job/step already") == 1
    slurm.state, slurm.refuses = "FAILED", ""
    failures.watch(look(at=NOW + 1))
    failures.hear(replace(NCCL, start=slurm.ended - 900), NOW + 1)
    while failures.step(look(), NOW + 1):
        pass
    assert slurm.done[2:] == ["requeue 5", "delay 5"], "its end is looked into as any other"


def test_where_slurm_does_not_answer_a_job_that_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm({**PLACED, "f.on-hang": "requeue"}, state="RUNNING")
    hangs = Hangs(Failures(slurm, slurm.outcome))  # type: ignore[arg-type]
    reading = look(job(segment=slurm.values, start=slurm.ended - 900))
    monkeypatch.setattr(slurm, "config", silent)
    with pytest.raises(NoAnswer):
        hangs.step({5: HANG}, reading)
    assert slurm.done == []
    monkeypatch.undo()
    hangs.step({5: HANG}, reading)

    assert slurm.done == ["requeue 5", "delay 5"]


def test_berth_why_tells_in_one_order_how_a_job_runs() -> None:
    idle = {"gpus": 1, "since": int(NOW) - 7_260}
    told = {"id": 5, "gpus": 8, "name": "x", "idle": idle, "hangs": HANG._asdict(), "slow": "lost 9% of its time"}
    found = running_of({"jobs": [{"id": 4}, told], "at": NOW}, 5)

    assert list(found) == ["slow", "hangs", "idle"]
    assert found["idle"] == "1 of its 8 GPUs have run no kernel for 2 h 1 min"
    assert running_of({"jobs": [told], "at": NOW}, 6) == {}
