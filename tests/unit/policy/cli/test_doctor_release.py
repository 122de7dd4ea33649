# SPDX-License-Identifier: Apache-2.0
"""berth doctor release: one held job of each form, read back field by field, placed, and cancelled."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy.cli.doctor import command as doctor
from policy.cli.doctor import release
from policy.cli.doctor.release import FORMS
from policy.formats import hostlist
from policy.formats.errors import BerthError, SlurmError
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.site.config import Config
from policy.slurm.interface import Pin
from policy.slurm.releases import why_only_watched
from tests.unit.policy_world import node, reading

PENDING = {"sbatch --gpus": "tres_per_job", "sbatch --gpus-per-task": "tres_per_task"}


class Held:
    """A Slurm that takes held jobs, and pins; a test spoils what it says."""

    def __init__(self, **spoilt: Any) -> None:
        self.jobs: list[JobFacts] = []
        self.texts: dict[int, JobText] = {}
        self.spoilt = spoilt
        self.cancelled: list[str] = []

    def popen(self, words: Sequence[str], **_: object) -> Held:
        name = next(word.partition("=")[2] for word in words if word.startswith("--job-name="))
        form = FORMS[int(name.rpartition("-")[2])]
        asked = {"tres_per_node": "", "tres_per_job": "", form.asks_by: "gres/gpu:1"}
        spoilt: dict[str, Any] = {**form.facts, **self.spoilt}
        for number in range(40 + len(self.texts), 40 + len(self.texts) + form.jobs):
            fact = JobFacts(
                number, "PENDING", "gpu", 0, 1, None, None, 60, 1, (), (), reason="JobHeldUser", name=name,
                user=os.geteuid(), count=form.nodes, het=40 if form.jobs > 1 else 0,
            )  # fmt: skip
            self.jobs.append(replace(fact, **spoilt))
            self.texts[number] = JobText(number, "PENDING", os.geteuid(), "", "", "", **asked)
        return self

    def poll(self) -> int | None:
        return None

    def kill(self) -> None:
        pass

    def communicate(self) -> None:
        pass

    def read(self, *, ended: bool) -> Reading:
        assert not ended
        now = reading([node("n1"), node("n2")], self.jobs)
        return replace(now, version="26.11.0")

    def job(self, job_id: int) -> JobText:
        return self.texts[job_id]

    def pin(self, job_id: int, pin: Pin) -> None:
        before = self.texts[job_id]
        self.texts[job_id] = replace(
            before,
            required=hostlist.fold(pin.nodes),
            tres_per_node="gres/gpu:g0:1",
            admin_comment=pin.plan.into(before.admin_comment),
        )

    def cancel(self, *words: str) -> bytes:
        self.cancelled.append(words[1].partition("=")[2])
        self.jobs = []
        return b""


def tried(monkeypatch: pytest.MonkeyPatch, slurm: Held, folder: Path, *, as_json: bool = False) -> int:
    monkeypatch.setattr(subprocess, "Popen", slurm.popen)
    monkeypatch.setattr(release, "run_command", slurm.cancel)
    options = argparse.Namespace(json=as_json)
    return release.run(options, Config(), slurm, folder / "tried")  # type: ignore[arg-type]


def test_all_forms_are_tried_and_the_release_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Held()

    assert tried(monkeypatch, slurm, tmp_path) == 0

    said = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in said] == [f"ok    {form.name}" for form in FORMS]
    assert len(slurm.cancelled) == len(FORMS)
    assert why_only_watched("26.11.4", tmp_path / "tried") == ""


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"limit": 3_600}, "limit is 3600, not 60"),
        ({"partition": "cpu"}, "partition is 'cpu', not 'gpu'"),
        ({"state": "RUNNING"}, "state is RUNNING, not PENDING"),
        ({"wants_gpus": False}, "wants_gpus is False, not True"),
        ({"tasks": ""}, "tasks is '', not '0-3'"),
        ({"het": 0}, "it is read as no part of a heterogeneous job"),
    ],
)
def test_a_field_that_is_read_otherwise_is_named_and_the_release_is_not_noted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoilt: dict[str, Any],
    said: str,
) -> None:
    slurm = Held()
    slurm.spoilt = spoilt
    monkeypatch.setattr(release, "FORMS", FORMS)

    assert tried(monkeypatch, slurm, tmp_path, as_json=True) == 1

    forms = json.loads(capsys.readouterr().out)["forms"]
    assert any(said in one["text"] and not one["ok"] for one in forms)
    assert len(slurm.cancelled) == len(FORMS)
    assert why_only_watched("26.11.0", tmp_path / "tried")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"required": "n7"}, "required nodes are 'n7', not 'n1'"),
        ({"admin_comment": ""}, "without the plan that was written"),
        ({"tres_per_node": "gres/gpu:1"}, "does not name GPU 0"),
        ({"user_id": 7}, "user_id is 7"),
    ],
)
def test_a_place_that_is_not_kept_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: dict[str, Any],
    said: str,
) -> None:
    slurm = Held()
    whole = slurm.job
    monkeypatch.setattr(slurm, "job", lambda job_id: replace(whole(job_id), **spoil))

    assert tried(monkeypatch, slurm, tmp_path) == 1
    assert said in capsys.readouterr().out


def test_a_form_that_slurm_refuses_is_named_in_slurms_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Held()

    def refuse(*_: object) -> None:
        raise SlurmError("scontrol update failed: Invalid node name specified")

    monkeypatch.setattr(slurm, "pin", refuse)

    assert tried(monkeypatch, slurm, tmp_path) == 1
    assert "FAIL  srun: scontrol update failed: Invalid node name specified" in capsys.readouterr().out


def test_a_release_that_needs_no_trial_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried").write_text("26.11\n")
    slurm = Held()

    with pytest.raises(BerthError, match="needs no trial"):
        tried(monkeypatch, slurm, tmp_path)
    assert slurm.texts == {}


def test_without_gpus_nothing_can_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Held()
    monkeypatch.setattr(slurm, "read", lambda **_: reading([], [], version="26.11.0"))

    with pytest.raises(BerthError, match="nothing can be tried"):
        tried(monkeypatch, slurm, tmp_path)


def test_doctor_names_a_release_that_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._version("26.05.5", "exact").ok
    found = doctor._version("26.11.0", "exact")
    assert (found.ok, "run berth doctor release; until it has passed, Berth leaves" in found.text) == (False, True)
    monkeypatch.setattr(doctor, "why_only_watched", lambda _: "")
    assert doctor._version("26.11.0", "exact").ok
    assert "support" in doctor._version("23.11.1", "exact").text
