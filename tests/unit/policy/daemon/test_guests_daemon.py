# SPDX-License-Identifier: Apache-2.0
"""What berthd does for hosts and guests: how a guest leaves, what Slurm is told, and what guards say."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.daemon.hear.guards import BELIEVED_FOR, Guards, GuardWord
from policy.daemon.hear.notices import Notice
from policy.daemon.passes.planner import Planner
from policy.daemon.write import pinned
from policy.daemon.write.evictions import SHORT, Evictions, backed_off, evicted
from policy.daemon.write.pins import Pins
from policy.formats import segment
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import PARKED
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, Reading
from policy.plan.answer.told import moved
from policy.plan.answer.told import parked as parked_values
from policy.plan.jobs.waiting_jobs import nodes_avoided
from policy.plan.ledger.changes import BACK_AFTER, Move, Own, Park
from policy.request import tiers
from policy.request.settings import Settings, Sharing
from policy.site.config import Config, load
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.examples import examples
from tests.told import Segment
from tests.unit.guest_world import NOW, guest, host, node, parked, plan, reading, running, seated, waiting
from tests.unit.policy_world import machine
from tests.unit.share_world import with_memory
from topology import files

FULL = 0xFF


@dataclass
class Slurm:
    """A gateway that remembers what was asked of it."""

    nodes: list[NodeFacts] = field(default_factory=lambda: [node("n1")])
    jobs: list[JobFacts] = field(default_factory=list)
    ended: bool = False
    silent: bool = False
    refuses: str = ""
    refuses_notes: str = ""
    refuses_to_end: str = ""
    requeue_of: dict[int, bool] = field(default_factory=dict)
    state: str = "RUNNING"
    text: str = ""
    """A record that has changed since it was read."""
    done: list[str] = field(default_factory=list)
    values: dict[int, dict[str, str]] = field(default_factory=dict)
    name: str = "fake"

    def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
        return reading(self.nodes, self.jobs)

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, self.state, 0, self.text, "", "", "", "")

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        if self.refuses_notes:
            raise SlurmError(self.refuses_notes)
        self.done.append(f"annotate {job_id}")
        self.values[job_id] = Segment(plan.texts, job_id)
        self.requeue_of[job_id] = requeue

    def evict(self, job_id: int) -> bool:
        if self.silent:
            raise NoAnswer("slurmctld did not answer")
        if self.refuses:
            raise SlurmError(self.refuses)
        self.done.append(f"evict {job_id}")
        return not self.ended

    def cancel(self, job_id: int) -> None:
        if self.refuses_to_end:
            raise SlurmError(self.refuses_to_end)
        self.done.append(f"cancel {job_id}")

    def requeue(self, job_id: int) -> None:
        self.done.append(f"requeue {job_id}")

    def warn(self, job_id: int, signal: str) -> None:
        self.done.append(f"{signal} {job_id}")

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool) -> None:  # noqa: ARG002 - as a gateway has it
        self.done.append(f"pin {job_id} {','.join(pin.nodes)} {pin.gpus}{' seat' if pin.guest else ''}")

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        self.done.append(f"park {job_id} {seconds} {plan.texts['state']}")


def evictions(slurm: Slurm, **sharing: Any) -> Evictions:
    return Evictions(slurm, Sharing(**sharing))  # type: ignore[arg-type]


def test_a_guest_is_put_back_and_what_it_comes_back_to_is_written_first() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm)
    assert leaving.begin(one, "its GPU is needed", NOW) == 2
    assert slurm.done == ["annotate 5", "evict 5"]
    assert (slurm.values[5]["parked"], slurm.values[5]["evicted"]) == (str(int(NOW) + 3), "1")
    assert leaving.begin(one, "its GPU is needed", NOW + 1) == 0
    assert leaving.step([replace(one, state="COMPLETING")], NOW + 1) == 0
    assert leaving.step([replace(one, state="PENDING")], NOW + 2) == 0
    assert leaving.begin(one, "again", NOW + 99) == 2


@pytest.mark.parametrize("upgrade", [False, True])
def test_one_that_is_sent_away_again_and_again_backs_off_and_its_user_is_told(*, upgrade: bool) -> None:
    slurm, at = Slurm(), NOW
    one = guest(5, "n1", 0)
    if upgrade:
        one = replace(one, plan=JobPlan({**one.known.texts, "upgrade": "0"}))
    waits, texts = [], []
    for _ in range(9):
        leaving = evictions(slurm)  # nothing of it is lost with berthd
        leaving.begin(replace(one, start=int(at) - 20), "its GPU is needed", at)
        one = replace(one, plan=JobPlan(slurm.values[5]))
        waits.append(int(slurm.values[5]["parked"]) - int(at))
        texts.append(slurm.values[5]["evicted_text"])
        at += 1_000
    if upgrade:
        # It is to have GPUs of its own, and no owner waits longer.
        assert set(waits) == {3}
        return
    assert waits == [3, 33, 63, 123, 243, 483, 603, 603, 603]
    assert texts[0] == "its GPU is needed"
    assert texts[1] == "its GPU is needed; sent away 2 times in a row soon after its start, it gets no seat for 30 s"
    evictions(slurm).begin(replace(one, start=int(at) - 601), "its GPU is needed", at)
    assert int(slurm.values[5]["parked"]) - int(at) == 3, "it ran for long"
    evictions(slurm).obey(replace(one, start=int(at) - 20), "its guard says so", at, {"n1": at + 600})
    assert int(slurm.values[5]["parked"]) - int(at) == 3, "its guard keeps it from that node as it is"


@given(st.lists(st.integers(1, 700), min_size=40, max_size=40))
@example([1] * 40)
@example([1, 1, 1, 1, 600] * 8)
@settings(max_examples=examples(100))
def test_however_owners_come_and_go_a_guest_is_restarted_a_few_times_in_an_hour(runs: list[int]) -> None:
    """An owner who submits and cancels as soon as the guest has a seat costs it no run every few seconds."""
    plan, at, short = guest(5, "n1", 0).known, 0, 0
    for ran in runs:
        at += ran
        if at > 3_600:
            break
        short += ran < SHORT
        plan = backed_off(evicted(plan, "its GPU is needed", at + BACK_AFTER, {}), ran)
        at = plan[PARKED]
    assert short <= 20, f"{short} runs of less than ten minutes"


def test_one_that_ended_in_the_same_moment_is_not_run_again() -> None:
    slurm = Slurm(ended=True)
    leaving = evictions(slurm)
    leaving.begin(guest(5, "n1", 0), "its GPU is needed", NOW)
    leaving.step([], NOW + 1)
    assert "requeue 5" not in slurm.done
    assert slurm.done.count("evict 5") == 1


def test_with_a_grace_it_is_warned_first() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm, evict_grace=30, evict_signal="USR2")
    leaving.begin(one, "its GPU is needed", NOW)
    leaving.step([one], NOW + 29)
    assert slurm.done == ["annotate 5", "USR2 5"]
    leaving.step([one], NOW + 30)
    assert slurm.done[-1] == "evict 5"


@pytest.mark.parametrize(("state", "again"), [("FAILED", True), ("COMPLETED", False), ("CANCELLED", False)])
def test_one_that_its_warning_killed_is_run_again_one_that_finished_is_not(state: str, *, again: bool) -> None:
    slurm = Slurm(state=state)
    leaving = evictions(slurm, evict_grace=30)
    leaving.begin(guest(5, "n1", 0), "its GPU is needed", NOW)
    leaving.step([], NOW + 5)
    assert ("requeue 5" in slurm.done) == again


def test_one_that_its_warning_killed_just_before_it_was_put_back_is_run_again() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm, evict_grace=30)
    leaving.begin(one, "its GPU is needed", NOW)
    leaving.step([one], NOW + 30)
    assert leaving.has_asked(5)
    slurm.state = "FAILED"  # Slurm passes over what has ended
    leaving.step([], NOW + 31)
    assert slurm.done[-1] == "requeue 5"


def test_a_guards_word_does_not_wait_for_the_grace() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm, evict_grace=30)
    leaving.begin(one, "its GPU is needed", NOW)
    leaving.obey(one, "its guard says so", NOW + 1, {"n1": NOW + 600})
    assert slurm.done[-1] == "evict 5"
    assert leaving.has_asked(5)


def test_whom_its_guard_warned_is_left_to_it_for_its_grace() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm)
    leaving.obey(one, "the GPU is full", NOW, {"n1": NOW + 600}, 40.0)
    leaving.step([one], NOW + 39)
    # Its guard has sent the signal already.
    assert slurm.done == ["annotate 5"]
    assert slurm.values[5]["parked"] == str(int(NOW) + 43)
    leaving.obey(one, "the GPU is full", NOW + 30, {"n1": NOW + 630})
    assert slurm.done == ["annotate 5", "evict 5"]


def test_a_guard_that_died_leaves_the_rest_to_berthd() -> None:
    slurm, one = Slurm(), guest(5, "n1", 0)
    leaving = evictions(slurm)
    leaving.obey(one, "the GPU is full", NOW, {"n1": NOW + 600}, 40.0)
    leaving.step([one], NOW + 40)
    assert slurm.done == ["annotate 5", "evict 5"]


@pytest.mark.parametrize(("state", "again"), [("FAILED", True), ("COMPLETED", False)])
def test_one_that_its_guards_warning_killed_is_run_again(state: str, *, again: bool) -> None:
    slurm = Slurm(state=state)
    leaving = evictions(slurm)
    leaving.obey(guest(5, "n1", 0), "the GPU is full", NOW, {}, 40.0)
    leaving.step([], NOW + 5)
    assert ("requeue 5" in slurm.done) == again


def test_one_that_slurm_does_not_put_back_is_tried_again_later(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm(refuses="Requested operation is presently disabled")
    leaving = evictions(slurm)
    for second in (0, 1, 4.9):
        leaving.begin(guest(5, "n1", 0), "its GPU is needed", NOW + second)
    assert capsys.readouterr().err.count("could not be sent away") == 1
    assert slurm.requeue_of[5], "its user may have said that it is not to be requeued"
    slurm.refuses = ""
    leaving.begin(guest(5, "n1", 0), "its GPU is needed", NOW + 5)
    assert slurm.done == ["annotate 5", "annotate 5", "evict 5"]
    assert (slurm.values[5].get("evicted"), leaving.count) == (None, 1), "the second note changes nothing"


ENDED_WITHIN = 12
"""Seconds after which berthd ends a guest at the latest."""


@pytest.mark.parametrize("what", ["refuses", "refuses_notes"])
@pytest.mark.parametrize("every", [1, 3, 11])
def test_one_that_slurm_never_puts_back_is_ended_and_its_user_told(what: str, every: int) -> None:
    one = guest(5, "n1", 0)
    slurm = Slurm()
    setattr(slurm, what, "Requested operation is presently disabled")
    leaving = evictions(slurm, evict_grace=3)
    wants = "its GPU is needed"
    for second in range(0, 200, every):
        leaving.begin(one, wants, NOW + second)
        leaving.step([one], NOW + second)
        if "cancel 5" in slurm.done:
            break
    assert slurm.done.count("cancel 5") == 1
    assert second <= ENDED_WITHIN + 3 + 2 * every
    assert slurm.done.count("USR1 5") == (what == "refuses"), "it is warned once"
    if what == "refuses":
        assert "Slurm did not requeue it, so it was ended: Requested operation" in slurm.values[5]["evicted_text"]
    assert leaving.has_asked(5)
    leaving.begin(one, wants, NOW + second + 1)
    leaving.step([replace(one, state="COMPLETING")], NOW + second + 2)
    slurm.state = "CANCELLED"
    leaving.step([], NOW + second + 9)
    assert slurm.done.count("cancel 5") == 1
    assert "requeue 5" not in slurm.done
    assert not leaving.has_asked(5)


def test_one_is_not_ended_whose_seat_nobody_wants_any_more_nor_one_that_left_meanwhile() -> None:
    one, slurm = guest(5, "n1", 0), Slurm(refuses="slurmctld did not answer")
    leaving = evictions(slurm)
    for second in (0, 5, 9, 60, 66):
        leaving.begin(one, "its GPU is needed", NOW + second)
    assert "cancel 5" not in slurm.done
    slurm.state = "PENDING"  # the requeue was done, and its answer came too late
    leaving.begin(one, "its GPU is needed", NOW + 72)
    assert "cancel 5" not in slurm.done


def test_one_is_ended_for_refusals_alone_and_not_for_calls_without_an_answer() -> None:
    one, slurm = guest(5, "n1", 0), Slurm(silent=True)
    leaving = evictions(slurm)
    for second in range(60):
        leaving.begin(one, "its GPU is needed", NOW + second)
    slurm.silent, slurm.refuses = False, "no"
    for second in range(60, 65):
        leaving.begin(one, "its GPU is needed", NOW + second)
    assert "cancel 5" not in slurm.done
    for second in range(65, 65 + ENDED_WITHIN):
        leaving.begin(one, "its GPU is needed", NOW + second)
    assert slurm.done.count("cancel 5") == 1


def test_one_that_slurm_does_not_even_end_is_tried_for_ever() -> None:
    one, slurm = guest(5, "n1", 0), Slurm(refuses="no", refuses_to_end="no")
    leaving = evictions(slurm)
    for second in range(60):
        leaving.begin(one, "its GPU is needed", NOW + second)
    slurm.refuses_to_end = ""
    for second in range(60, 66):
        leaving.begin(one, "its GPU is needed", NOW + second)
    assert slurm.done[-1] == "cancel 5"


# What Slurm is told.


def text(job: JobFacts, tres: str = "gres/gpu:1", extra: str = "") -> JobText:
    return JobText(job.id, "PENDING", 0, segment.put("site", job.known.texts), f"mine{extra}", "", tres, "")


def test_a_seat_is_pinned_without_a_gpu_and_begins_now() -> None:
    job = parked(10)
    [move] = plan([node("n1", used=FULL)], [host(1, "n1", 0b1), running(2, "n1", 0xFE, 9_000), job])
    assert isinstance(move, Move)
    values = moved(move, NOW)
    made = changes.pin(text(job), Pin(move.berth.names, move.berth.gpus, seats=False, plan=values))
    assert (made["tres_per_node"], made["req_nodes"]) == ("gres/seat:g0:1", "n1")
    assert (made["begin"], made["requeue"]) == (changes.NOW, "1")
    assert made["extra"] == "mine[berth/1 nodes=n1 gpus=0 tier=opportunistic way=time]"
    assert (values.texts["state"], values.texts["seats"], "parked" in values.texts) == ("placed", "0", False)


def test_an_upgrade_gets_its_own_gpu_alone() -> None:
    job = parked(10, segment={"upgrade": "0"})
    [move] = plan([node("n1")], [job])
    assert isinstance(move, Move)
    values = moved(move, NOW)
    assert (values.texts["seats"], "tier" in values.texts, "way" in values.texts, move.way) == ("1", False, False, "")
    made = changes.pin(text(job), Pin(move.berth.names, move.berth.gpus, seats=True, plan=values))
    assert made["tres_per_node"].startswith("gres/gpu:g")
    assert "requeue" not in made
    assert "tier" not in made["extra"]


def test_a_host_keeps_its_tier_when_it_is_moved() -> None:
    job = waiting(5, "n1", 0b1, segment={"tier": "guaranteed", "way": "mps", "seats": "0"})
    changed = plan([node("n1", used=FULL), node("n2")], [running(1, "n1", FULL, 9_000), job])
    [move] = [one for one in changed if isinstance(one, Move)]
    values = moved(move, NOW)
    assert (values.texts["tier"], values.texts["seats"]) == ("guaranteed", "0")
    made = changes.pin(text(job), Pin(move.berth.names, move.berth.gpus, seats=False, plan=values))
    assert made["extra"].endswith("tier=guaranteed way=mps]")
    assert "seat" not in made["tres_per_node"]


def test_a_parked_guest_is_on_no_node_and_keeps_its_own_begin_time() -> None:
    job = guest(10, "n1", 3, segment={"parked": "1234"})
    values = parked_values(Park(job, "no seat is free for it"), NOW)
    made = changes.park(text(job, "gres/seat:g3:1", "[berth/1 nodes=n1 gpus=3]"), values, 60)
    assert (made["tres_per_node"], made["req_nodes"], made["extra"], made["begin"]) == ("gres/gpu:1", "", "mine", "+60")
    there = segment.fields(made["admin_comment"]) or {}
    assert (there["state"], there["parked"], "nodes" in there) == ("later", "1234", False)


def test_without_berth_a_parked_guest_is_as_any_job() -> None:
    released = changes.release(text(parked(10)), "berthd stops")
    assert released is not None
    assert (released["tres_per_node"], released["begin"], released["req_nodes"]) == ("gres/gpu:1", "0", "")
    there = segment.fields(released["admin_comment"]) or {}
    assert not {"tier", "parked", "way"} & there.keys()
    assert changes.may_hold_pin(parked(10))


def test_who_is_given_its_gpu_is_told_so() -> None:
    slurm = Slurm()
    job = guest(5, "n1", 0, segment={"upgrade": "0"})
    Pins(slurm, None).write([Own(job, "its turn has come")], reading([node("n1")]))  # type: ignore[arg-type]
    assert slurm.values[5]["owns"] == "1"


def test_what_was_written_since_it_was_read_stays() -> None:
    slurm = Slurm(text="[berth/1 nodes=n2 held=time]")
    job = guest(5, "n1", 0, segment={"upgrade": "0"})
    Pins(slurm, None).write([Own(job, "its turn has come")], reading([node("n1")]))  # type: ignore[arg-type]
    assert (slurm.values[5]["nodes"], slurm.values[5]["held"], slurm.values[5]["owns"]) == ("n2", "time", "1")
    slurm.text = "[berth/9 of a newer release]"
    Pins(slurm, None).write([Own(job, "its turn has come")], reading([node("n1")]))  # type: ignore[arg-type]
    assert (slurm.values[5]["upgrade"], slurm.values[5]["owns"]) == ("0", "1")


# Guards.


def word(**changes: Any) -> GuardWord:
    return GuardWord(**{"node": "n1", "gpu": 0, "job": 5, "state": "overlimit", "word": "evict", **changes})


def test_a_closed_gpu_opens_by_its_guards_word_or_after_a_time() -> None:
    guards = Guards()
    guards.hear(word(gpu=1), NOW)
    guards.hear(word(gpu=3, state="unhealthy"), NOW)
    assert guards.closed({"n1": 7}, NOW) == {7: 0b1010}
    guards.hear(word(gpu=1, state="healthy"), NOW)
    assert guards.closed({"n1": 7}, NOW) == {7: 0b1000}
    assert guards.closed({}, NOW) == {}
    assert guards.closed({"n1": 7}, NOW + BELIEVED_FOR) == {}


def test_berthd_starts_with_a_table_that_is_the_guards(tmp_path: Path) -> None:
    (tmp_path / "berth.conf").write_text("[guard]\nslope = 0.2\n[guard.action]\nevict_grace_s = 5\n")
    assert load(tmp_path / "berth.conf") == Config()


class Channel:
    """Takes pictures."""

    def sign(self) -> None:
        pass

    def send(self, _: Any) -> None:
        pass


def planner_of(slurm: Slurm, folder: Path) -> Planner:
    for one in slurm.nodes:
        files.dump(with_memory(machine(one.name, "l40s")), folder / f"{one.name}.json")
    config = Config(topology_dir=folder, fabric="none", pinned_file=folder / "pinned", settings=Settings())
    return Planner(slurm, config, Channel())  # type: ignore[arg-type]


def write_all(planner: Planner) -> None:
    while planner.write_one():
        pass


def test_the_guards_word_is_obeyed_before_it_is_answered(tmp_path: Path) -> None:
    slurm = Slurm([node("n1", used=FULL, seats_used=1)], [host(1, "n1", FULL), guest(5, "n1", 0)])
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    said: list[bytes] = []

    def answer(line: bytes) -> None:
        said.append(line)
        slurm.done.append("answered")

    planner.take([Notice(5, "n1", answer, word=word())])

    assert slurm.done == ["annotate 5", "evict 5", "answered"]
    assert said == [b"berth/1 done\n"]
    assert list(nodes_avoided(JobPlan(slurm.values[5]), NOW)) == ["n1"]


def test_of_one_that_has_to_leave_berthd_takes_note_and_no_more(tmp_path: Path) -> None:
    slurm = Slurm([node("n1", used=FULL, seats_used=1)], [host(1, "n1", FULL), guest(5, "n1", 0)])
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    said: list[bytes] = []

    planner.take([Notice(5, "n1", said.append, word=word(word="leave", grace=30))])

    assert slurm.done == ["annotate 5"]
    assert said == [b"berth/1 done\n"]
    assert list(nodes_avoided(JobPlan(slurm.values[5]), NOW)) == ["n1"]


def test_a_guest_that_was_sent_away_gets_no_pin_by_a_record_from_before(tmp_path: Path) -> None:
    # It started after the reading. An Epilog that spoke in the same moment gave it a place, and its old record with it.
    nodes = [node("n1", used=FULL), node("n2", used=FULL)]
    slurm = Slurm(nodes, [host(1, "n1", FULL), running(2, "n2", FULL, 9_000), seated(5, "n1", 0)])
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    write_all(planner)
    slurm.done.clear()

    planner.take([Notice(5, "n1", lambda _: None, word=word()), Notice(2, "n2", lambda _: None)])
    write_all(planner)

    assert slurm.done == ["annotate 5", "evict 5"]


def test_whom_berthd_does_not_know_the_guard_puts_back_itself(tmp_path: Path) -> None:
    slurm = Slurm([node("n1", used=FULL)], [host(1, "n1", FULL)])
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    said: list[bytes] = []
    planner.take([Notice(job, "n1", said.append, word=word(job=job)) for job in (5, 1)])
    planner.take([Notice(0, "n1", said.append, word=word(job=0, word="state"))])
    assert said == [b"berth/1 standby\n"] * 2 + [b"berth/1 done\n"]
    assert slurm.done == []


def test_an_owner_is_pinned_and_the_guest_in_its_way_leaves_first(tmp_path: Path) -> None:
    owner = waiting(6, "n2", 0b1, submitted=int(NOW) - 5, segment={"cpus": "30"})
    jobs = [guest(5, "n1", 0, cpus=4), running(1, "n2", FULL, 9_000), owner]
    slurm = Slurm([node("n1", seats_used=1, cpus_used=4), node("n2", used=FULL)], jobs)
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    write_all(planner)
    assert slurm.done[:2] == ["annotate 5", "evict 5"]
    assert slurm.done[2].startswith("pin 6 n1")


def listed(path: Path) -> dict[int, int]:
    """What the plugin knows of each job."""
    words = memoryview(path.read_bytes()[16:]).cast("I")
    return dict(zip(words[::2], words[1::2], strict=True))


def test_guests_without_a_seat_are_listed_so_that_nobody_starts_them_by_hand(tmp_path: Path) -> None:
    jobs = [running(1, "n1", FULL, 9_000), waiting(4, "n1", 1), parked(5)]
    jobs += [parked(8, array=6, tasks="2-4", state="ARRAY"), seated(9, "n2", 0)]
    slurm = Slurm([node("n1", used=FULL, seats_used=FULL), node("n2", used=FULL)], [*jobs, host(2, "n2", FULL)])
    planner_of(slurm, tmp_path).one_pass(ended=False)

    there = listed(tmp_path / "pinned")
    # The array by its own number too: its tasks have none yet.
    assert {job for job, kinds in there.items() if kinds & pinned.PARKED} == {5, 6, 8}
    assert {job for job, kinds in there.items() if kinds & pinned.PINNED} >= {4, 9}


def test_jobs_that_run_beside_others_are_listed_so_that_nobody_takes_their_extra_away() -> None:
    jobs = [
        running(1, "n1", 1, 9_000, segment={"state": "placed"}),
        running(2, "n1", 2, 9_000, segment={"state": "placed", "share": "30"}),
        running(3, "n1", 4, 9_000, segment={"state": "placed", "tier": "opportunistic"}),
        waiting(4, "n1", 8, segment={"state": "placed", "tier": "guaranteed"}),
    ]
    assert pinned.listed((), jobs) == {2: pinned.SHARES, 3: pinned.SHARES}


def test_jobs_that_wait_where_berth_does_not_look_are_listed_as_such() -> None:
    jobs = [
        replace(waiting(3, "n1", 1), partition="plain", plan=None),
        replace(waiting(4, "n1", 1), partition="plain,cpu", wants_gpus=False),
        replace(waiting(5, "n1", 1), partition="gpu,plain"),
        running(6, "n1", 1, 9_000, partition="plain"),
        replace(waiting(8, "n1", 1), partition="cpu", array=7, tasks="1-3", state="ARRAY"),
    ]
    elsewhere, unchecked = pinned.ELSEWHERE, pinned.ELSEWHERE | pinned.UNCHECKED
    found = pinned.listed((), jobs, frozenset({"plain", "cpu"}))
    assert found == {3: unchecked, 4: elsewhere, 7: unchecked, 8: unchecked}
    assert pinned.listed((), jobs) == {}


def test_what_may_not_leave_its_partition_or_qos_is_listed_as_such() -> None:
    allowed = tiers.parse_allowed("partition=gpu:exclusive+guaranteed partition=low:opportunistic qos=best:guaranteed")
    jobs = [
        replace(waiting(1, "n1", 1), share=30),
        replace(waiting(2, "n1", 1, segment={"tier": "opportunistic"}), guest=True, partition="low"),
        running(3, "n1", 1, 9_000),
        waiting(4, "n1", 1, segment={"f.gpu-tier": "guaranteed,mps"}),
        replace(waiting(5, "n1", 1), wants_gpus=False, plan=None, partition="low"),
        replace(waiting(6, "n1", 1), wants_gpus=False, plan=None),
        replace(waiting(7, "n1", 1), partition="plain"),
        running(8, "n1", 1, 9_000, partition="plain"),
    ]
    both, skipped = pinned.BY_PARTITION | pinned.BY_QOS, frozenset({"plain"})
    found = pinned.listed((), jobs, skipped, allowed)
    assert found == {
        pinned.ANY_JOB: both | pinned.NO_GPUS,
        1: pinned.PART | both,
        2: pinned.PART | pinned.GUEST | both,
        3: both,
        4: both,
        5: pinned.NO_GPUS,
        7: pinned.ELSEWHERE | pinned.UNCHECKED,
    }
    assert pinned.listed((), jobs, skipped) == {
        1: pinned.PART,
        2: pinned.PART | pinned.GUEST,
        7: found[7],
    }
    for rules, bits in (
        ("exclusive+guaranteed qos=low:opportunistic", pinned.BY_QOS),
        ("guaranteed qos=best:exclusive+guaranteed", both),
        ("partition=low:opportunistic qos=best:guaranteed+opportunistic", both),
        ("partition=low:opportunistic", pinned.BY_PARTITION),
        ("exclusive+guaranteed+opportunistic", 0),
    ):
        assert pinned.listed((), jobs[2:3], skipped, tiers.parse_allowed(rules)).get(3, 0) == bits, rules


@pytest.mark.parametrize("text", ['[berthd]\nmode = "observe"\n', '[hook]\nlayout = "plain"\n'])
def test_where_no_job_has_a_tier_none_is_refused_for_one(tmp_path: Path, text: str) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text(f'{text}[sharing]\ntier_allowed = "opportunistic"\n')
    assert load(conf).settings.sharing.tier_allowed == ()


def test_a_guest_without_a_seat_is_parked_by_the_planner(tmp_path: Path) -> None:
    stuck = replace(waiting(5, "n1", 0b1, segment={"tier": "opportunistic", "way": "time"}), guest=True)
    slurm = Slurm([node("n1", used=FULL, seats_used=FULL)], [running(1, "n1", FULL, 9_000), stuck])
    planner = planner_of(slurm, tmp_path)
    planner.one_pass(ended=False)
    write_all(planner)
    assert slurm.done == ["park 5 86400 later"]
