# SPDX-License-Identifier: Apache-2.0
"""The one rule of who may see what."""

import threading
from collections.abc import Mapping

import pytest

from policy.formats.errors import SlurmError
from policy.site import privacy as module
from policy.site.privacy import AGAIN_AFTER, LOOK_EVERY, SlurmRules, Visibility

ALICE, BOB, SLURM, OURS = 1001, 1002, 64030, 999


def rules(config: Mapping[str, str]) -> SlurmRules:
    return SlurmRules(lambda: config, OURS)


@pytest.mark.parametrize(
    ("private", "jobs", "nodes"),
    [
        ("none", True, True),
        ("(null)", True, True),
        ("", True, True),
        ("accounts,usage", True, True),
        ("jobs", False, True),
        ("Usage, Jobs", False, True),
        ("nodes", True, False),
        ("jobs,nodes", False, False),
        ("all", False, False),
        (None, False, False),
    ],
)
def test_strangers_see_what_private_data_leaves_and_slurms_people_everything(
    private: str | None, jobs: bool, nodes: bool
) -> None:
    config = {"SlurmUser": f"slurm({SLURM})"} | ({} if private is None else {"PrivateData": private})
    seen = rules(config).visibility()

    for stranger in (BOB, None):
        assert (seen.shows("jobs", stranger), seen.shows("nodes", stranger)) == (jobs, nodes)
        assert seen.shows("jobs", stranger, ALICE) is jobs
    assert seen.shows("jobs", ALICE, ALICE)
    for trusted in (0, SLURM, OURS):
        assert seen.shows("jobs", trusted, ALICE)
        assert seen.shows("nodes", trusted)


def test_a_user_who_is_not_known_owns_no_job_of_an_unknown_owner() -> None:
    assert not Visibility().shows("jobs", None, None)


@pytest.mark.parametrize("private", ["none", "(NULL)", ""])
def test_nothing_is_hidden_where_slurm_says_so(private: str) -> None:
    assert not rules({"PrivateData": private}).visibility().hidden


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_slurm_is_asked_once_a_minute_and_what_it_said_holds_while_it_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, asked, answers = Clock(), [0], list[Mapping[str, str]]()
    monkeypatch.setattr(module, "time", clock)

    def config() -> Mapping[str, str]:
        asked[0] += 1
        if not answers:
            raise SlurmError("slurmctld does not answer")
        return answers[0]

    made = SlurmRules(config, OURS)
    for clock.now in (0.0, AGAIN_AFTER - 1):
        assert made.visibility().hidden == {"all"}, "until Slurm has told, everything is private"
    assert asked[0] == 1
    answers.append({"PrivateData": "none"})
    for clock.now in (AGAIN_AFTER, AGAIN_AFTER + LOOK_EVERY - 1):
        assert made.visibility().shows("jobs", BOB)
    assert asked[0] == 2
    answers.clear()
    clock.now += LOOK_EVERY
    assert made.visibility().shows("jobs", BOB)
    assert asked[0] == 3
    assert capsys.readouterr().err.count("slurmctld does not answer") == 2


def test_while_one_thread_waits_for_slurm_others_go_by_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, go, waits = Clock(), threading.Event(), threading.Event()
    monkeypatch.setattr(module, "time", clock)

    def config() -> Mapping[str, str]:
        if clock.now:
            waits.set()
            assert go.wait(20)
        return {"PrivateData": "none"}

    made = SlurmRules(config, OURS)
    made.visibility()
    clock.now = LOOK_EVERY
    thread = threading.Thread(target=made.visibility)
    thread.start()
    assert waits.wait(20)
    assert made.visibility().shows("jobs", BOB)
    go.set()
    thread.join(20)
