# SPDX-License-Identifier: Apache-2.0
"""A running job is moved: in which order, what each restart of berthd makes of it, and what ends by itself."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from policy.daemon.passes.planner import Planner
from policy.formats import segment
from policy.formats.errors import ConfigError, NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, Reading
from policy.formats.wire import Message, check_submit
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Move
from policy.plan.ledger.claims import Claim
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import RelocationRules, Settings
from policy.site.config import Config, load
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.told import Segment
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, fleet, machine, node, reading, running, submit, waiting
from topology import files

RULES = RelocationRules(enabled=True, grace=30, restart=10, cost=60, after=60)


@dataclass
class Slurm:
    """Two nodes: a movable job of one GPU keeps a gang from the first; the second has one GPU free."""

    at: float = NOW
    states: dict[int, str] = field(default_factory=lambda: {1: "RUNNING", 2: "RUNNING", 9: "PENDING"})
    segments: dict[int, dict[str, str]] = field(default_factory=dict)
    said_since: dict[str, str] = field(default_factory=dict)
    """What others wrote into a record and no reading has shown yet."""
    pins: dict[int, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    movable: str | None = "1:00"
    may_requeue: bool = True
    restarts: int = 0
    ends: str = ""
    """As what the job ends in the moment in which it is to be put back."""
    refuses: str = ""
    up: bool = True
    done: list[str] = field(default_factory=list)
    name: str = "fake"
    known: dict[int, tuple[object, JobFacts]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said = {} if self.movable is None else {"f.movable": self.movable}
        first = waiting(1, "n1", 0b1).known.texts
        self.segments = {
            1: {**first, "state": "placed", **said},
            2: {},
            9: dict(waiting(9, "n1", 0xFF).known.texts),
        }
        self.pins = {1: (("n1",), 0b1), 2: (("n2",), 0x7F), 9: (("n1",), 0xFF)}

    def _held(self, name: str) -> int:
        held = 0
        for job_id, (nodes, mask) in self.pins.items():
            if name in nodes and self.states.get(job_id) in {"RUNNING", "COMPLETING"}:
                held |= mask if self.states[job_id] == "RUNNING" else 0
        return held

    def _job(self, job_id: int) -> JobFacts:
        (nodes, mask), state = self.pins[job_id], self.states[job_id]
        values = self.segments[job_id]
        key = (nodes, mask, state, str(values))
        if job_id not in self.known or self.known[job_id][0] != key:
            if state == "PENDING":
                fact = waiting(job_id, nodes[0], mask, required=nodes, submitted=int(NOW) - 900)
                begin = int(self.at) + 100 if job_id == 1 and "move_until" in values else None
                fact = replace(fact, plan=JobPlan(dict(values)), begin=begin, priority=2 if job_id == 1 else 1)
            else:
                fact = running(job_id, nodes[0], mask, 9_000, segment=dict(values) or None, state=state, nodes=nodes)
                # Of one that was put back Slurm names the next start while it still ends.
                start = int(self.at) + 120 if state == "COMPLETING" else int(NOW) - 1_000
                fact = replace(fact, start=start, required=nodes)
            self.known[job_id] = key, fact
        return self.known[job_id][1]

    def read(self, *, ended: bool) -> Reading:
        over = {"COMPLETED", "FAILED", "CANCELLED"}
        jobs = [self._job(job_id) for job_id, state in self.states.items() if ended or state not in over]
        nodes: list[NodeFacts] = [node(name, used=self._held(name), up=self.up) for name in ("n1", "n2")]
        return replace(reading(nodes, jobs), at=self.at)

    def job(self, job_id: int) -> JobText:
        text = segment.put("", {**self.segments[job_id], **self.said_since})
        return JobText(job_id, self.states[job_id], 0, text, "", "", "", "")

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        if self.refuses:
            raise SlurmError(self.refuses)
        self.done.append(f"annotate {job_id}{' moving' if 'move_until' in plan.texts else ''}")
        self.segments[job_id] = Segment(plan.texts, job_id)

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        self.done.append(f"delay {job_id} {seconds}")
        self.segments[job_id] = Segment(plan.texts, job_id)

    def config(self) -> dict[str, str]:
        return {"SchedulerParameters": "bf_continue,max_batch_requeue=3"}

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        self.done.append(f"{signal} {job_id}{' batch' if batch else ''}")

    def evict(self, job_id: int) -> bool:
        self.done.append(f"evict {job_id}")
        self.states[job_id] = self.ends or "COMPLETING"
        return not self.ends

    def requeue(self, job_id: int) -> None:
        self.done.append(f"requeue {job_id}")
        self.states[job_id] = "PENDING"

    def pin(self, job_id: int, pin: Pin, *, hurry: bool) -> None:  # noqa: ARG002 - as a gateway has it
        self.done.append(f"pin {job_id} {','.join(pin.nodes)} {len(pin.gpus)}")
        self.pins[job_id] = pin.nodes, sum(1 << gpu for gpu in pin.gpus)
        self.segments[job_id] = dict(pin.plan.texts)

    def ask(self, job_id: int) -> Outcome:
        return Outcome(job_id, job_id, "RUNNING", None, may_requeue=self.may_requeue, restarts=self.restarts)


class Channel:
    """Takes snapshots."""

    def sign(self) -> None:
        pass

    def send(self, _: Any) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("n1", "n2"):
        files.dump(machine(name, "h100"), tmp_path / f"{name}.json")
    return tmp_path


def berthd(slurm: Slurm, folder: Path, rules: RelocationRules = RULES, scores: Path | None = None) -> Planner:
    settings = Settings(moving=rules)
    config = Config(topology_dir=folder, fabric="none", pinned_file=folder / "pinned", settings=settings, scores=scores)
    planner = Planner(slurm, config, Channel())  # type: ignore[arg-type]
    planner._moving._ask = slurm.ask  # type: ignore[assignment]
    return planner


def passes(planner: Planner, slurm: Slurm, seconds: float = 1.0) -> list[str]:
    """A pass, so many seconds later, and all that it puts off; what was done."""
    slurm.at += seconds
    slurm.done.clear()
    planner.one_pass(ended=False)
    while planner.write_one():
        pass
    # Why the gang waits is written as well.
    return [one for one in slurm.done if one != "annotate 9"]


def begun(slurm: Slurm, folder: Path) -> Planner:
    planner = berthd(slurm, folder)
    assert passes(planner, slurm) == ["annotate 1 moving", "pin 9 n1 8", "USR1 1"]
    return planner


def test_from_the_record_to_the_new_place(folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    assert slurm.segments[1]["move_to"] == "n2:7"
    assert slurm.segments[1]["move_for"] == "9"
    assert slurm.segments[9]["why"].startswith("room was made for it: a job moved on")
    assert passes(planner, slurm, 28) == []
    assert passes(planner, slurm, 5) == ["evict 1"]
    assert passes(planner, slurm) == []
    # Its former place is the gang's now, though it stands before it in Slurm's order.
    slurm.states.update({1: "PENDING", 9: "RUNNING"})
    assert passes(planner, slurm) == ["pin 1 n2 1"]
    assert (slurm.pins[1], "move_until" in slurm.segments[1]) == ((("n2",), 0x80), False)
    assert slurm.segments[1]["moves"] == str(int(NOW) + 1)
    slurm.states[1] = "RUNNING"
    assert passes(planner, slurm, 60) == []
    assert planner._moving.relocations.counts == {"moves": 1}


def test_who_saves_by_leaving_is_run_again_at_once(folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    slurm.states[1] = "FAILED"
    assert passes(planner, slurm, 3) == ["requeue 1"]
    assert passes(planner, slurm) == ["pin 1 n2 1"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_who_ends_by_itself_is_not_run_again(state: str, folder: Path) -> None:
    slurm = Slurm(ends=state)
    planner = begun(slurm, folder)
    assert passes(planner, slurm, 31) == ["evict 1"]
    assert passes(planner, slurm) == []
    assert slurm.states[1] == state


def test_a_job_that_fails_on_its_signal_in_the_moment_of_its_requeue_is_run_again(folder: Path) -> None:
    slurm = Slurm(ends="FAILED")
    planner = begun(slurm, folder)
    assert passes(planner, slurm, 31) == ["evict 1"]
    assert passes(planner, slurm) == ["requeue 1"]
    assert passes(planner, slurm) == ["pin 1 n2 1"]


def test_a_job_that_left_on_its_signal_is_run_again_once_slurm_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: int) -> None:
        raise NoAnswer("slurmctld did not answer within 20 s")

    slurm = Slurm()
    planner = begun(slurm, folder)
    slurm.states[1] = "FAILED"
    with monkeypatch.context() as away:
        away.setattr(slurm, "job", silent)
        assert passes(planner, slurm) == []

    assert "requeue 1" in passes(planner, slurm)


def test_without_a_pin_of_the_waiting_job_no_job_is_signalled_or_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise SlurmError("no")

    slurm = Slurm()
    planner = berthd(slurm, folder)
    with monkeypatch.context() as patch:
        patch.setattr(slurm, "pin", refused)
        assert passes(planner, slurm) == ["annotate 1 moving"]
    assert passes(planner, slurm) == ["annotate 1"]
    assert "move_until" not in slurm.segments[1]
    assert slurm.states[1] == "RUNNING"
    # It counts as moved in this hour.
    assert passes(planner, slurm, 60) == []


def test_its_own_signal_goes_where_its_user_wants_it(folder: Path) -> None:
    slurm = Slurm()
    slurm.segments[1]["signal"] = "B:12"
    assert passes(berthd(slurm, folder), slurm)[-1] == "12 1 batch"


@pytest.mark.parametrize(
    ("changes_", "rules"),
    [
        ({"movable": None}, RULES),
        ({"movable": "12:00:00"}, RULES),
        ({"may_requeue": False}, RULES),
        ({"restarts": 3}, RULES),
        ({"refuses": "no"}, RULES),
        ({}, replace(RULES, enabled=False)),
        ({}, replace(RULES, after=3_600)),
    ],
)
def test_it_stays(changes_: dict[str, Any], rules: RelocationRules, folder: Path) -> None:
    """It did not say so, is too dear, cannot be put back, or not again; no record is taken; none move here, or yet."""
    slurm = Slurm(**changes_)
    planner = berthd(slurm, folder, rules)
    for _ in range(3):
        assert passes(planner, slurm, 15) == []


def test_a_job_leaves_a_slow_gpu_of_its_own_node(folder: Path) -> None:
    slurm = Slurm()
    slurm.states[9] = "CANCELLED"
    table = folder / "scores.csv"
    rows = [
        f"{name},{gpu},GPU-{name}-{gpu},compute,{1.5 if (name, gpu) == ('n1', 0) else 1.0},5,0.01,2026-11-01"
        for name in ("n1", "n2") for gpu in range(8)
    ]  # fmt: skip
    table.write_text("# berth-scores/1\nnode,position,uuid,class,score,runs,spread,at\n" + "\n".join(rows) + "\n")
    planner = berthd(slurm, folder, scores=table)

    assert passes(planner, slurm) == ["annotate 1 moving", "USR1 1"]
    assert slurm.segments[1]["move_for"] == "0"
    assert "its slowest GPU takes 1.50 of the usual time" in slurm.segments[1]["move_text"]
    passes(planner, slurm, 31)
    slurm.states[1] = "PENDING"
    if "n1" in slurm.segments[1]["move_to"]:
        # slurmd refuses a job on the node that it has just left.
        assert passes(planner, slurm) == []
    [done] = passes(planner, slurm, 4)
    assert done.startswith("pin 1")
    assert slurm.pins[1] != (("n1",), 0b1)


def test_a_gang_that_starts_elsewhere_meanwhile_leaves_it_in_peace(folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    slurm.pins[9], slurm.states[9] = (("n2",), 0x80), "RUNNING"
    assert passes(planner, slurm, 10) == []
    assert passes(planner, slurm, 21) == ["annotate 1"]
    assert "move_until" not in slurm.segments[1]
    assert slurm.states[1] == "RUNNING"
    assert planner._moving.relocations.counts["moves_called_off"] == 1


def test_what_was_written_since_the_last_reading_stays(folder: Path) -> None:
    slurm = Slurm(said_since={"held": "time"})
    begun(slurm, folder)
    assert (slurm.segments[1]["held"], "move_until" in slurm.segments[1]) == ("time", True)


def test_no_job_is_moved_twice_in_an_hour(folder: Path) -> None:
    slurm = Slurm()
    slurm.segments[1]["moves"] = str(int(NOW) - 1_800)
    planner = berthd(slurm, folder)
    assert passes(planner, slurm) == []
    assert passes(planner, slurm, 1_900)[0] == "annotate 1 moving"


def test_nor_more_than_the_site_wants(folder: Path) -> None:
    slurm = Slurm()
    slurm.segments[2] = {**slurm.segments[1], "moves": str(int(NOW) - 1_800)}
    del slurm.segments[2]["f.movable"]
    assert passes(berthd(slurm, folder, replace(RULES, per_hour=1)), slurm) == []
    assert passes(berthd(slurm, folder, replace(RULES, per_hour=2)), slurm)[0] == "annotate 1 moving"


# Restarts, in each state.


def test_after_a_restart_before_the_gang_was_pinned_the_job_stays(folder: Path) -> None:
    slurm = Slurm()
    begun(slurm, folder)
    slurm.pins[9] = (("n2",), 0xFF)
    slurm.segments[9] = {**slurm.segments[9], "nodes": "n2"}
    again = berthd(slurm, folder)
    assert passes(again, slurm) == []
    assert passes(again, slurm, 30)[0] == "annotate 1"
    assert slurm.states[1] == "RUNNING"


def test_after_a_restart_within_the_grace_it_goes_on(folder: Path) -> None:
    slurm = Slurm()
    begun(slurm, folder)
    again = berthd(slurm, folder)
    # Nobody knows whether the signal was sent.
    assert passes(again, slurm, 5) == ["USR1 1"]
    assert passes(again, slurm, 31) == ["evict 1"]


@pytest.mark.parametrize("gang", ["PENDING", "RUNNING"])
def test_after_a_restart_while_it_leaves_it_gets_its_place(gang: str, folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    passes(planner, slurm, 31)
    slurm.states[9] = gang
    again = berthd(slurm, folder)
    assert passes(again, slurm) == []
    slurm.states[1] = "PENDING"
    assert passes(berthd(slurm, folder), slurm) == ["pin 1 n2 1"]


def test_after_a_restart_who_left_on_the_signal_is_run_again(folder: Path) -> None:
    slurm = Slurm()
    begun(slurm, folder)
    slurm.states[1] = "FAILED"
    again = berthd(slurm, folder)
    assert passes(again, slurm) == ["requeue 1"]
    assert passes(again, slurm) == ["pin 1 n2 1"]


def test_after_a_restart_who_finished_is_not_run_again(folder: Path) -> None:
    slurm = Slurm()
    begun(slurm, folder)
    slurm.states[1] = "COMPLETED"
    assert passes(berthd(slurm, folder), slurm) == []


def test_where_moving_was_switched_off_meanwhile_a_job_under_way_is_left_in_peace(folder: Path) -> None:
    slurm = Slurm()
    begun(slurm, folder)
    slurm.states[9] = "CANCELLED"
    again = berthd(slurm, folder, replace(RULES, enabled=False))
    passes(again, slurm)
    assert passes(again, slurm, 31) == ["annotate 1"]


def test_a_place_that_is_gone_is_replaced_by_another(folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    passes(planner, slurm, 31)
    slurm.states.update({1: "PENDING", 9: "CANCELLED"})
    slurm.pins[3], slurm.states[3], slurm.segments[3] = (("n2",), 0x80), "RUNNING", {}
    [done] = passes(planner, slurm, 5)
    assert done.startswith("pin 1 n1")


def test_a_job_that_has_left_and_finds_no_place_may_begin_soon(folder: Path) -> None:
    slurm = Slurm()
    planner = begun(slurm, folder)
    passes(planner, slurm, 31)
    slurm.states.update({1: "PENDING", 9: "CANCELLED"})
    slurm.up = False
    assert passes(planner, slurm, 5)[0] == "delay 1 3"
    assert "move_until" not in slurm.segments[1]


def test_a_pin_of_a_moved_job_lets_it_begin_now() -> None:
    values = {"state": "placed", "nodes": "n2", "gpus": "7"}
    before = segment.put("", {**values, "move_until": "5"})
    made = changes.pin(
        JobText(1, "PENDING", 0, before, "", "", "gres/gpu:g0:1", ""), Pin(("n2",), (7,), True, JobPlan(values))
    )
    assert made["begin"] == changes.NOW
    assert "move_until" not in made["admin_comment"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('cost = "soon"', r"\[moving\] cost: 'soon' is not a time"),
        ("per_job = 0", r"\[moving\] per_job is at least 1 an hour, not 0"),
        ("enabled = true\n[berthd]\npin_ahead = false", r"\[moving\] enabled goes with"),
        ("per_hours = 2", r"\[moving\] has no key per_hours; did you mean per_hour"),
    ],
)
def test_a_bad_setting_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "berth.conf").write_text(f"[moving]\n{text}\n")
    with pytest.raises(ConfigError, match=says):
        load(tmp_path / "berth.conf")


def test_the_settings_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "berth.conf").write_text('[moving]\nenabled = true\ngrace = 120\ncost = "10:00"\nsignal = "USR2"\n')
    assert load(tmp_path / "berth.conf").settings.moving == RelocationRules(
        enabled=True, grace=120, cost=600, signal="USR2"
    )
    assert not load(Path("/nonexistent")).settings.moving.enabled


# At submission.


def decided(rules: RelocationRules = RULES, **fields: str) -> tuple[dict[str, str], str]:
    """What stands in the segment of a movable job, and what its user reads."""
    look = reading([node("n1")])
    answer = decide(
        submit(tres_per_job="gres/gpu:1", **{"flag.movable": "5"}, **fields), book(look), BerthPolicy(),
        Settings(moving=rules), NOW,
    )  # fmt: skip
    values = segment.fields(f"[berth/1 {answer.fields['segment']}]") or {}
    return values, answer.fields["message"]


def test_the_signal_of_a_movable_job_stands_in_its_record() -> None:
    values, said = decided(signal="B:10")
    assert (values["signal"], values["f.movable"]) == ("B:10", "5")
    assert "--movable" not in said
    assert "signal" not in decided(signal="no signal")[0]
    check_submit(Message("submit", submit(signal="B:10")))


def test_who_is_never_moved_is_told_so() -> None:
    assert decided(client="alloc")[1].endswith("--movable: accepted, a job without a script is never moved [BERTH-101]")
    assert decided(replace(RULES, enabled=False))[1].endswith(
        "--movable: accepted, this site moves no jobs [BERTH-101]"
    )


# The plan while a job is moved.


def test_nobody_slips_into_the_place_that_room_was_made_for() -> None:
    """A small job that stands before the gang cannot start where it is pinned; a node comes free."""
    small = waiting(5, "n2", 0b1, priority=9)
    gang = waiting(9, "n1", 0xFF, priority=1)
    look = reading([node("n1"), node("n2", used=0xFF)], [running(2, "n2", 0xFF, 9_000), small, gang])
    plan = Plan(BerthPolicy(), Settings())
    tracker = Tracker(fleet(look))
    tracker.update(look)
    assert {move.job.id for move in plan.replan(tracker.book(), look.jobs) if isinstance(move, Move)} >= {5}
    plan = Plan(BerthPolicy(), Settings())
    plan.first = frozenset({9})
    assert not [move for move in plan.replan(tracker.book(), look.jobs) if isinstance(move, Move) and move.start == 0]


def test_the_place_that_a_job_moves_to_is_kept_for_it() -> None:
    look = reading([node("n1", used=0xFF), node("n2", used=0x7F)], [waiting(5, "n1", 0b1)])
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan = Plan(BerthPolicy(), Settings())
    [move] = plan.replan(tracker.book(), look.jobs)
    assert isinstance(move, Move)
    assert move.berth.names == ("n2",)
    plan = Plan(BerthPolicy(), Settings())
    plan.kept = (Claim((1,), 0x80, 1, 100, NOW, NOW + 3_600),)
    assert not [one for one in plan.replan(tracker.book(), look.jobs) if isinstance(one, Move) and one.start == 0]
    assert not plan.freed(tracker, [1], look.jobs)
