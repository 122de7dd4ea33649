# SPDX-License-Identifier: Apache-2.0
"""What is ahead of a waiting job, in each view, and what of it another user may see."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from policy.cli.jobs import why
from policy.cli.main import main
from policy.daemon.hear.gpu_use import SeenGpus, ToldGpu
from policy.daemon.passes.overviews import moment_of, overview_of
from policy.formats import segment, wire
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.serve.questions.answers import Questions
from policy.serve.status import BerthdStatus
from policy.serve.web import live
from policy.serve.web.access import WebAccess
from policy.serve.web.live import LiveSource
from policy.site import ahead as module
from policy.site.ahead import MOST_BARS, ahead_of, ahead_rows
from policy.site.privacy import SlurmRules, Visibility
from tests.unit.policy.plan.test_reasons import POLICY
from tests.unit.policy.serve.web.web_world import served, told
from tests.unit.policy_world import NOW, fleet, node, reading, running, waiting

ADA, BORIS, CLARA = 1001, 1002, 1003
ALL = Visibility(frozenset())
SECRETS = ("boris", "clara", "4711", "4712", "secret", "71234")
BUSY, FREE = (93, 71_234, 698), (0, 9, 70)


def overview(extra: Iterable[JobFacts] = ()) -> dict[str, Any]:
    """Ada's job of two GPUs waits behind Boris's gang, for which n2 is kept, and Clara's job, which runs on n1."""
    secret = {"account": "secret"}
    clara = running(4711, "n1", 0xFF, 600, user=CLARA, holds=(0xFF,), **secret)
    wide = {"n": "2", "k": "8", "nodes": "n1,n2"}
    gang = waiting(4712, "n1", 0xFF, required=("n1", "n2"), segment=wide, count=2, priority=9, user=BORIS, **secret)
    jobs = [replace(clara, name="secret"), replace(gang, name="secret"), *extra]
    jobs.append(waiting(5, "n1", 0b11, user=ADA, limit=7_200, segment={"because": "fair_share"}))
    look = reading([node("n1", used=0xFF), node("n2")], jobs)
    picture, plan = Tracker(fleet(look)), Plan(POLICY, Settings())
    picture.update(look)
    plan.replan(picture.book(), look.jobs)
    use = {name: tuple(ToldGpu(gpu, 0, 0, *does) for gpu in range(8)) for name, does in (("n1", BUSY), ("n2", FREE))}
    moment = moment_of(plan, look, SeenGpus({}, use))
    assert moment is not None
    found: dict[str, Any] = json.loads(json.dumps(overview_of(moment)))
    return found


def name_users(patch: pytest.MonkeyPatch) -> None:
    """Names the users on a host that has none of them."""
    for one in (module, live):
        patch.setattr(one, "user_of", {ADA: "ada", BORIS: "boris", CLARA: "clara"}.__getitem__)


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    name_users(monkeypatch)


def rows_for(viewer: int | None, rules: Visibility) -> dict[str, str]:
    return dict(ahead_rows(ahead_of(overview(), 5, rules, viewer)))


def test_it_says_who_is_before_what_is_kept_for_whom_and_until_when() -> None:
    found = rows_for(ADA, ALL)

    assert found["before it"] == "1 job of 16 GPUs, by Slurm's order"
    assert found["kept"].startswith("n2 GPUs 0-7 for job 4712 of boris (16 GPUs), which starts there at ")
    assert "n1 GPU" in found["its place"]


def test_a_job_that_runs_or_is_not_known_has_nothing_ahead() -> None:
    assert ahead_of(overview(), 4711, ALL, ADA) is None
    assert ahead_of(overview(), 99, ALL, ADA) is None
    assert ahead_rows(None) == []


def test_few_bars_are_told_of_many_jobs() -> None:
    many = [waiting(number, "n1", 0b11, user=BORIS, priority=5) for number in range(100, 140)]

    found = ahead_of(overview(many), 5, ALL, ADA)

    assert found is not None
    assert (found["jobs"], len(found["bars"])) == (41, MOST_BARS)


# What another user may not see, in each view


class Slurm:
    """Slurm with this PrivateData, in which job 5 is Ada's."""

    def __init__(self, private: str) -> None:
        self.private = private

    def config(self) -> dict[str, str]:
        return {"PrivateData": self.private, "SlurmUser": "slurm(64030)"}

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, "PENDING", ADA, segment.put("", PLAN), "", "", "", "")


PLAN = {"state": "waiting", "nodes": "n1", "gpus": "0,1", "because": "fair_share", "because_text": "kept [BERTH-513]"}


def of_the_question(private: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    slurm = Slurm(private)
    asked = Questions(slurm.job, SlurmRules(slurm.config, 64030), BerthdStatus(dict), overview)
    reply = wire.decode(asked.answer(ADA, b"berth/1 why job=5") or b"").fields
    found = why.Told(reply["state"], JobPlan(PLAN), json.loads(reply["ahead"]))
    patch.setattr(why, "look_up", lambda _number: found)
    assert main(["why", *words, "5"]) == 0
    return capsys.readouterr().out


def of_the_lists(private: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Ada's `berth nodes` or `berth queue`, from what the port tells her."""
    name_users(patch)
    patch.setattr("policy.cli.jobs.queue.user_of", str)
    slurm = Slurm(private)
    asked = Questions(slurm.job, SlurmRules(slurm.config, 64030), BerthdStatus(dict), overview)

    def talk(_connection: object, line: bytes, _most: int) -> bytes:
        return asked.answer(ADA, line) or b""

    patch.setattr("policy.cli.ask._hosts", lambda _config: ("localhost",))
    patch.setattr("policy.cli.ask._near", lambda *_: object())
    patch.setattr("policy.cli.ask._talk", talk)
    main(list(words))
    shown = capsys.readouterr()
    return f"{shown.out}{shown.err}"


def page_of_ada(private: str, patch: pytest.MonkeyPatch) -> tuple[LiveSource, WebAccess]:
    """The page's data, and Ada's token."""
    name_users(patch)
    slurm = Slurm(private)
    source = LiveSource(overview, slurm.job, SlurmRules(slurm.config, 64030), dict, lambda: NOW)
    source.read()
    patch.setattr("policy.serve.web.access.pwd.getpwnam", lambda _name: type("User", (), {"pw_uid": ADA}))
    return source, WebAccess(tokens={"a" * 16: "ada"})


def of_the_page(private: str, patch: pytest.MonkeyPatch, _: pytest.CaptureFixture[str], *_words: str) -> str:
    source, access = page_of_ada(private, patch)
    with served(source, access) as server:
        signed = {"Authorization": f"Bearer {'a' * 16}"}
        return json.dumps([told(server, f"/api/{path}", signed) for path in ("job/5", "moment", "use")])


VIEWS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "berth why": (of_the_question, ()),
    "berth why -v": (of_the_question, ("-v",)),
    "berth why --json": (of_the_question, ("--json",)),
    "berth web": (of_the_page, ()),
}


LISTS = [("nodes",), ("nodes", "--json"), ("nodes", "--idle"), ("queue",), ("queue", "--json")]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_lists_are_open_as_far_as_those_of_slurm(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, private, closed = (
        of_the_lists(private, monkeypatch, capsys, *words) for private in ("none", "jobs", "jobs,nodes")
    )

    assert "--idle" in words or "4711" in opened
    assert "--idle" in words or ("n1" in private and "n1" in opened)
    for told_to_ada in (private, closed):
        assert [secret for secret in (*SECRETS, str(BORIS), str(CLARA)) if secret in told_to_ada] == []
    assert ("Slurm hides the nodes from you" in closed) == (words[0] == "nodes")


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_names_a_job_that_is_not_private(
    view: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show, words = VIEWS[view]

    shown = show("none", monkeypatch, capsys, *words)

    assert "4712" in shown
    assert "boris" in shown


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_tells_number_name_or_account_of_a_private_job(
    view: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show, words = VIEWS[view]

    shown = show("jobs", monkeypatch, capsys, *words)

    assert [secret for secret in SECRETS if secret in shown] == []
    assert "another user's job of 16 GPUs" in shown


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_names_nodes_that_are_private(
    view: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show, words = VIEWS[view]

    shown = show("jobs,nodes", monkeypatch, capsys, *words)

    assert "n2" not in shown
