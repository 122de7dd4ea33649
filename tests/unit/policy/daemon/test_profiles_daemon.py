# SPDX-License-Identifier: Apache-2.0
"""What berthd learns of jobs while they run, and how it keeps it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policy.cluster.shared.sharers import who_is
from policy.daemon.hear.guards import Alone, GuardWord, Together
from policy.daemon.hear.notices import Notice
from policy.daemon.known.company import ProfileKeeper
from policy.daemon.known.profiles import KNOWN_EVERY, USED_AFTER, WRITE_EVERY, Profiles
from policy.daemon.passes.planner import Planner
from policy.formats.errors import ConfigError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.request.settings import Settings, Sharing
from policy.sharing.profiles import ProfileKey, Store, Verdict
from policy.site.config import Config, load
from tests.unit.company_world import ALONE
from tests.unit.deciding import decide
from tests.unit.guest_world import NOW, book, guest, host, node, reading
from tests.unit.policy.daemon.test_guests_daemon import Channel, Slurm
from tests.unit.policy_world import machine, submit
from tests.unit.share_world import packed, with_memory
from topology import files

FULL = 0xFF
TRAIN, SWEEP = ProfileKey("ann", "lab", "train"), ProfileKey("ann", "lab", "sweep")


def jobs() -> dict[int, JobFacts]:
    one = replace(host(1, "n1", 0b1, segment={"f.app-class": "mixed"}), account="lab", name="train")
    return {1: one, 5: replace(guest(5, "n1", 0), account="lab", name="sweep")}


def word(**values: Any) -> GuardWord:
    return GuardWord(**{"node": "n1", "gpu": 0, "job": 5, "state": "healthy", "word": "state", **values})


def opened(path: Path) -> Profiles:
    made = Profiles(path, name_of=lambda _: "ann")
    made.refresh(NOW, writes=True)
    return made


def written(made: Profiles, at: float) -> None:
    made.refresh(at, writes=True)
    assert made._writer is not None
    made._writer.join()


def test_what_was_in_use_long_ago_is_no_longer_counted(tmp_path: Path) -> None:
    made = opened(tmp_path / "profiles")
    known = jobs()
    for number in range(50):
        known[1] = replace(known[1], name=f"train-{number}")
        made.hear(word(job=0, alone=Alone(1, 60.0, step=0.2, busy=0.5)), known, NOW)
    made.hear(word(job=0, alone=Alone(1, 60.0, step=0.2, busy=0.5)), jobs(), NOW + USED_AFTER)
    written(made, NOW + USED_AFTER + WRITE_EVERY / 2)

    assert {key.name for key in made._used} == {"train", "class:mixed"}


def test_figures_of_a_job_alone_become_its_profile_and_its_classs(tmp_path: Path) -> None:
    made = opened(tmp_path / "profiles")
    for minute in range(10):
        said = Alone(1, 60.0, step=0.2, busy=0.5, bandwidth=0.3, memory=3_000.0)
        assert made.hear(word(job=0, alone=said), jobs(), NOW + 60 * minute) == ""

    for key in (TRAIN, replace(TRAIN, name="class:mixed")):
        found = made.store.measured[key]
        assert (found.busy, found.bandwidth, found.memory, found.step) == pytest.approx((0.5, 0.3, 3_000.0, 0.2))
        assert found.runs == pytest.approx(1.0, rel=0.01)


def test_it_is_written_now_and_then_for_its_owner_alone_and_read_by_the_next_berthd(tmp_path: Path) -> None:
    path = tmp_path / "profiles"
    made = opened(path)
    made.hear(word(job=0, alone=Alone(1, 60.0, busy=0.5)), jobs(), NOW)
    made.refresh(NOW + WRITE_EVERY - 1, writes=True)
    assert not path.exists()
    made.refresh(NOW + WRITE_EVERY, writes=False)
    assert not path.exists(), "a standby's berthd leaves the file alone"
    written(made, NOW + WRITE_EVERY)

    assert path.stat().st_mode & 0o777 == 0o600
    assert opened(path).store.measured.keys() == made.store.measured.keys()
    made.hear(word(job=0, alone=Alone(5, 60.0, busy=0.9)), jobs(), NOW)
    made.close(NOW)
    assert SWEEP in opened(path).store.measured


def test_users_who_name_each_job_anew_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy.daemon.known.profiles.MOST", 3)
    path = tmp_path / "profiles"
    made = opened(path)
    for number in range(9):
        there = {1: replace(jobs()[1], plan=JobPlan({}), name=f"run{number}"), 5: jobs()[5]}
        said = word(alone=Alone(1, 60.0, busy=0.5), together=Together(1, 60.0, 0.97, 0.5))
        made.hear(said, there, NOW + number)
    made.store.fault(TRAIN, SWEEP, NOW - 9)
    written(made, NOW + WRITE_EVERY)

    store = Store.read(path.read_text())
    assert {key.name for key in store.measured} == {"run6", "run7", "run8"}
    assert len(store.tried) == 3
    assert store.verdict(TRAIN, SWEEP) is Verdict.FAULT
    assert made.store == store


def test_many_names_of_one_user_push_no_other_out_of_what_packed_jobs_are_placed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy.daemon.known.profiles.MOST_NEIGHBOURS", 3)
    made = Profiles(tmp_path / "profiles", name_of=lambda user: f"user{user}")
    one = replace(jobs()[1], plan=JobPlan({}), user=1)
    made.hear(word(alone=Alone(1, 60.0, busy=0.5)), {1: replace(one, user=2)}, NOW)
    for number in range(9):
        made.hear(word(alone=Alone(1, 60.0, busy=0.5)), {1: replace(one, name=f"run{number}")}, NOW + 1 + number)
    made.know_neighbours(NOW + KNOWN_EVERY, 0.9, capped=False)
    assert made.neighbours is not None
    assert set(made.neighbours.known) == {(2, "train"), (1, "run7"), (1, "run8")}


def test_what_another_wrote_meanwhile_is_kept_and_so_is_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "profiles"
    made = opened(path)
    made.hear(word(alone=Alone(1, 60.0, busy=0.5), together=Together(1, 60.0, 0.97, 0.5)), jobs(), NOW)
    path.write_text(Store({ProfileKey("ann", "lab", "other"): ALONE["light"]}).write())
    made.refresh(NOW + 1, writes=True)

    assert {key.name for key in made.store.measured} == {"train", "class:mixed", "other"}
    assert made.store.verdict(TRAIN, SWEEP) is Verdict.GOOD
    assert made.companions.store is made.store


def test_a_file_that_makes_no_sense_is_logged_and_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profiles"
    path.write_text(Store({TRAIN: ALONE["light"]}).write())
    made = opened(path)
    path.write_text("nonsense\n")
    made.refresh(NOW, writes=True)

    assert "what is known already stays in use" in capsys.readouterr().err
    assert TRAIN in made.store.measured


def test_a_host_that_suffers_is_freed_of_its_guest_and_the_pair_is_remembered(tmp_path: Path) -> None:
    made = opened(tmp_path / "profiles")
    assert made.hear(word(together=Together(1, 29.0, 0.80, 1.0)), jobs(), NOW) == "", "too short to tell"
    said = made.hear(word(together=Together(1, 60.0, 0.91, 1.0)), jobs(), NOW)

    assert "its host ran at 0.91 of its speed beside it" in said
    assert made.store.verdict(TRAIN, SWEEP) is Verdict.HARMED
    assert made.hear(word(job=9, together=Together(1, 60.0, 0.5, 1.0)), jobs(), NOW) == "", "nobody knows job 9"


def test_a_guest_of_a_new_kind_is_on_trial_until_two_guards_told_that_their_hosts_bore_it(tmp_path: Path) -> None:
    made = opened(tmp_path / "profiles")
    light = Alone(1, 600.0, busy=0.14, bandwidth=0.0, memory=2_048.0)
    there = {number: replace(jobs()[1], id=number, name=f"train{number}") for number in (1, 2, 3)}
    there[5] = jobs()[5]
    for number in (1, 2, 3):
        made.hear(word(alone=replace(light, job=number)), there, NOW)
    made.hear(word(alone=Alone(5, 600.0, busy=0.02, bandwidth=0.0, memory=30_000.0)), there, NOW)

    footing = []
    for number in (1, 2):
        footing.append(made.companions.pair(who_is(there[3]), who_is(there[5])).footing.value)
        made.hear(word(together=Together(number, 60.0, 1.0, 1.0)), there, NOW)

    assert footing == ["trial", "trial"]
    assert made.companions.pair(who_is(there[3]), who_is(there[5])).footing.value == "promised"


def test_a_guest_that_is_let_run_half_of_the_time_has_half_of_its_speed(tmp_path: Path) -> None:
    made = opened(tmp_path / "profiles")
    predicted = made.companions.predicted(*(who_is(job) for job in jobs().values())).guest
    for _ in range(5):
        made.hear(word(together=Together(1, 60.0, 0.97, 0.5)), jobs(), NOW)

    assert made.store.tried[TRAIN, SWEEP].guest_speed == pytest.approx(predicted / 2)


def test_jobs_that_brought_each_other_down_are_written_at_once_even_if_they_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "profiles"
    company = ProfileKeeper(Sharing(profiles=str(path)))
    two = [replace(packed(number, "n1", 0, 30), account="lab", name=name) for number, name in ((7, "a"), (8, "b"))]
    company.look(reading([node("n1")], two), writes=True)
    company.look(reading([node("n1")], [], at=NOW + 1), writes=True)
    company.hear(word(job=7, word="fault"), NOW + 2)
    company.look(reading([node("n1")], [], at=NOW + 2), writes=True)
    company.close()
    assert company.foes == {((two[0].user, "a"), (two[0].user, "b")), ((two[0].user, "b"), (two[0].user, "a"))}
    again = ProfileKeeper(Sharing(profiles=str(path)))
    again.look(reading([node("n1")], []), writes=True)
    assert again.foes == company.foes

    store = Store.read(path.read_text())
    [(one, other), _] = store.tried
    assert store.verdict(one, other) is store.verdict(other, one) is Verdict.FAULT
    assert {one.name, other.name} == {"a", "b"}


def test_the_planner_puts_a_guest_back_that_harms_its_host_and_gives_it_no_such_seat_again(tmp_path: Path) -> None:
    there = jobs()
    slurm = Slurm([node("n1", used=FULL, seats_used=FULL)], list(there.values()))
    files.dump(with_memory(machine("n1", "l40s")), tmp_path / "n1.json")
    settings = Settings(sharing=Sharing(profiles=str(tmp_path / "profiles")))
    config = Config(topology_dir=tmp_path, fabric="none", pinned_file=tmp_path / "pinned", settings=settings)
    planner = Planner(slurm, config, Channel())  # type: ignore[arg-type]
    planner.one_pass(ended=False)
    said: list[bytes] = []
    planner.take([Notice(5, "n1", said.append, word=word(together=Together(1, 60.0, 0.90, 1.0)))])

    assert said == [b"berth/1 done\n"]
    assert slurm.done == ["annotate 5", "evict 5"]
    assert "0.90 of its speed" in slurm.values[5]["evicted_text"]

    slurm.done.clear()
    parked = {**slurm.values[5], "state": "later", "parked": "0"}
    waits = replace(
        there[5], state="PENDING", nodes=(), required=(), gpus=None, guest=False, start=None, end=None, holds=(),
        reason="BeginTime", begin=int(NOW) + 86_000, plan=JobPlan(parked),
    )  # fmt: skip
    slurm.nodes, slurm.jobs = [node("n1", used=FULL, seats_used=0xFE)], [there[1], waits]
    for _ in range(3):
        planner.one_pass(ended=False)
        while planner.write_one():
            pass
    planner.close()
    assert not any(one.startswith("pin") for one in slurm.done)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("profiles", '"x"'),
        ("fit", '"x"'),
        ("unsure", '"maybe"'),
        ("profiles", "1"),
        ("least_speed", "101"),
        ("trials", "-1"),
    ],
)
def test_a_wrong_word_in_berth_conf_is_named(tmp_path: Path, key: str, value: str) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text(f"[sharing]\n{key} = {value}\n")
    with pytest.raises(ConfigError, match=rf"\[sharing\] {key} is"):
        load(conf)


@pytest.mark.parametrize("text", [None, "no fit"])
def test_without_a_fit_guests_are_seated_by_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    fit = tmp_path / "fit.json"
    if text is not None:
        fit.write_text(text)
    company = ProfileKeeper(Sharing(profiles=str(tmp_path / "profiles"), fit=str(fit)))

    assert company.chooser is None
    assert company.hear(word(together=Together(1, 60.0, 0.5, 1.0)), NOW) == ""
    company.close()
    assert "guests are seated by rules alone" in capsys.readouterr().err


def test_an_answer_that_comes_after_the_next_question_answers_no_question(tmp_path: Path) -> None:
    """The matcher drops an earlier question with its answer; what is asked and taken goes between two passes."""
    done: list[object] = []

    class Matcher:
        def ask(self, problem: object) -> None:
            done.append(("ask", problem))

        def done(self) -> object:
            return "an answer"

        def close(self) -> None:
            pass

    company = ProfileKeeper(Sharing(profiles=str(tmp_path / "profiles")))
    company._matcher = Matcher()  # type: ignore[assignment]
    chooser: Any = SimpleNamespace(problem=None, take=lambda found: done.append(("take", found)))
    company.chooser = chooser
    company.match()
    chooser.problem = "a question"
    company.match()
    company.match()
    assert done == [("take", "an answer"), ("ask", "a question"), ("take", "an answer")]
    company.close()


def test_packed_jobs_are_known_by_user_and_name_once_a_minute_at_most(tmp_path: Path) -> None:
    company = ProfileKeeper(Sharing(profiles=str(tmp_path / "profiles"), least_speed=70))
    look = replace(reading([node("n1", used=1)], list(jobs().values())), at=NOW)
    company.look(look, writes=False)
    assert company.neighbours is not None
    assert company.neighbours.known == {}

    company.hear(word(job=0, alone=Alone(1, 60.0, busy=0.5, bandwidth=0.3, memory=3_000.0)), NOW)
    company.look(replace(look, at=NOW + KNOWN_EVERY - 1), writes=False)
    assert company.neighbours.known == {}
    company.look(replace(look, at=NOW + KNOWN_EVERY), writes=False)
    first = company.neighbours
    assert first is not None
    assert (set(first.known), first.least) == ({(jobs()[1].user, "train")}, 0.7)
    company.look(replace(look, at=NOW + 9 * KNOWN_EVERY), writes=False)
    assert company.neighbours is first, "nothing is new"
    company.close()


def test_where_nobody_looks_at_speeds_packed_jobs_have_no_neighbours(tmp_path: Path) -> None:
    for sharing in (Sharing(), Sharing(profiles=str(tmp_path / "profiles"), least_speed=0)):
        company = ProfileKeeper(sharing)
        company.look(reading([node("n1")], []), writes=False)
        assert company.neighbours is None
        company.close()


def test_where_jobs_have_profiles_the_seats_beside_hosts_are_the_planners(tmp_path: Path) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text('[sharing]\nprofiles = "/var/lib/berth/profiles"\nunsure = "wait"\n')
    sharing = load(conf).settings.sharing
    assert (sharing.profiles, sharing.unsure, sharing.fit) == ("/var/lib/berth/profiles", "wait", "")

    fields = {"tres_per_job": "gres/gpu:1", "gpus": "1", "flag.gpu-tier": "opportunistic"}
    full = [node("n1", used=FULL)], [host(1, "n1", FULL)]
    for nodes, there, verb in ((*full, "later"), ([node("n1")], [], "place")):
        decision = decide(submit(**fields), book(nodes, there, sharing), BerthPolicy(), Settings(), NOW)
        assert (decision.verb, decision.fields["guest"]) == (verb, "1")
