# SPDX-License-Identifier: Apache-2.0
"""A user whose program brought MPS down: packed jobs of that user are put beside nobody for an hour."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from policy.daemon.hear.guards import GuardWord
from policy.daemon.hear.notices import Notice
from policy.daemon.passes.planner import Planner
from policy.daemon.write.mps_faults import APART_FOR, MpsFaults
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.request.settings import Settings, Sharing
from policy.site.config import Config
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, reading, submit
from tests.unit.share_world import book, node, packed

MALLORY, ALICE = 7, 8


class Slurm:
    """Knows job 5, which is Mallory's."""

    name = "fake"

    def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
        # By the real clock, which the planner's own memory goes by.
        return reading([node("n1")], [], at=time.time())

    def job(self, job_id: int) -> JobText:
        if job_id != 5:
            raise SlurmError("Invalid job id specified")
        return JobText(5, "FAILED", MALLORY, "", "", "n1", "", "")


def where(opened: Book, user: int) -> str:
    fields = {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-share": "30", "uid": str(user)}
    return decide(submit(**fields), opened, BerthPolicy(), Settings(), NOW).fields["gpus"]


def opened(*jobs: JobFacts, apart: frozenset[int] = frozenset()) -> Book:
    shared = tuple(30 if any(job.gpus == 1 << gpu for job in jobs) else 0 for gpu in range(8))
    used = sum(job.gpus or 0 for job in jobs)
    look = [node("n1", gpus_used=used, shared=shared)]
    return book(look, list(jobs), Sharing(multi_user=True, apart=apart))


def test_he_comes_beside_nobody_and_nobody_comes_beside_him() -> None:
    hers, his = packed(1, "n1", 0, 30, user=ALICE), packed(2, "n1", 1, 30, user=MALLORY)

    assert where(opened(hers), MALLORY) == "0"
    apart = opened(hers, his, apart=frozenset({MALLORY}))
    assert where(apart, MALLORY) not in {"0", "1"}
    assert where(apart, ALICE) == "0"
    assert where(opened(his, apart=frozenset({MALLORY})), ALICE) != "1"


def test_two_of_his_own_jobs_are_apart_too() -> None:
    at_once = opened(apart=frozenset({MALLORY}))
    fields = {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-share": "30", "uid": str(MALLORY)}
    first = decide(submit(**fields), at_once, BerthPolicy(), Settings(), NOW)
    assert first.claim is not None
    at_once.claim(first.claim)

    assert where(at_once, MALLORY) != first.fields["gpus"]


class Channel:
    """Keeps the last picture."""

    def __init__(self) -> None:
        self.last: Any = None

    def sign(self) -> None:
        pass

    def send(self, snapshot: Any) -> None:
        self.last = snapshot


def test_a_guards_word_reaches_the_plan(tmp_path: Path) -> None:
    channel = Channel()
    config = Config(topology_dir=tmp_path, pinned_file=tmp_path / "pinned")
    planner = Planner(Slurm(), config, channel)  # type: ignore[arg-type]
    planner.one_pass(ended=False)
    assert channel.last.cluster.fleet.sharing.apart == frozenset()
    planner.take([Notice(5, "n1", lambda _: None, word=GuardWord("n1", 0, 5, "disabled", "fault"))])
    planner.one_pass(ended=False)

    assert channel.last.cluster.fleet.sharing.apart == {MALLORY}


def test_he_is_known_by_the_last_reading_where_slurm_does_not_answer(tmp_path: Path) -> None:
    class Silent(Slurm):
        def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
            return reading([node("n1")], [packed(5, "n1", 0, 30, user=MALLORY)], at=time.time())

        def job(self, job_id: int) -> JobText:
            raise NoAnswer(f"slurmctld tells nothing of job {job_id}")

    channel = Channel()
    config = Config(topology_dir=tmp_path, pinned_file=tmp_path / "pinned")
    planner = Planner(Silent(), config, channel)  # type: ignore[arg-type]
    planner.one_pass(ended=False)
    planner.take([Notice(5, "n1", lambda _: None, word=GuardWord("n1", 0, 5, "disabled", "fault"))])
    planner.one_pass(ended=False)

    assert channel.last.cluster.fleet.sharing.apart == {MALLORY}


def test_it_ends_after_an_hour_and_begins_anew_with_each_fault() -> None:
    mps_faults = MpsFaults(Slurm())  # type: ignore[arg-type]
    mps_faults.blame(5, NOW)

    assert mps_faults.users(NOW + APART_FOR - 1) == {MALLORY}
    mps_faults.blame(5, NOW + 10)
    assert mps_faults.users(NOW + APART_FOR + 9) == {MALLORY}
    assert mps_faults.users(NOW + APART_FOR + 10) == frozenset()


def test_a_job_that_slurm_has_forgotten_blames_nobody() -> None:
    mps_faults = MpsFaults(Slurm())  # type: ignore[arg-type]
    mps_faults.blame(6, NOW)

    assert mps_faults.users(NOW) == frozenset()


def test_two_jobs_that_brought_each_other_down_are_apart_for_ever_and_nobody_else() -> None:
    hers = packed(1, "n1", 0, 30, user=ALICE)
    foes = frozenset({((MALLORY, "bad"), (ALICE, hers.name)), ((ALICE, hers.name), (MALLORY, "bad"))})
    look = [node("n1", gpus_used=1, shared=(30,))]
    there = book(look, [hers], Sharing(multi_user=True, foes=foes))

    assert _place(there, MALLORY, "bad") != "0"
    assert _place(there, MALLORY, "good") == "0"
    assert _place(there, ALICE, "bad") == "0"


def test_a_job_that_waits_keeps_no_place_beside_its_foe() -> None:
    hers, his = packed(1, "n1", 0, 30, user=ALICE), packed(2, "n1", 0, 30, user=MALLORY)
    waits = replace(
        his, name="bad", state="PENDING", nodes=(), start=None, end=None, holds=(), reason="Resources",
        plan=JobPlan({**his.known.texts, "share": "30", "n": "1", "k": "1", "cpus": "1", "mem": "100"}),
    )  # fmt: skip
    foes = frozenset({((MALLORY, "bad"), (ALICE, hers.name))})
    sharing = Sharing(multi_user=True, foes=foes)
    opened = book([node("n1", gpus_used=1, shared=(30,))], [hers], sharing)
    demand = Reader(opened.fleet).read(waits, NOW).demand

    assert opened.start_of(demand, [0], 0b1) != 0.0
    assert opened.start_of(replace(demand, share=replace(demand.share, foes=frozenset())), [0], 0b1) == 0.0  # type: ignore[type-var]


def _place(there: Book, user: int, name: str) -> str:
    fields = {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-share": "30", "uid": str(user), "name": name}
    return decide(submit(**fields), there, BerthPolicy(), Settings(), NOW).fields["gpus"]
