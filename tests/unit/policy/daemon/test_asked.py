# SPDX-License-Identifier: Apache-2.0
"""What waiting jobs asked for, kept for the plugin; and jobs whose owner changed it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policy.daemon.write import asked
from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.formats.slurm_syntax import excluded_nodes
from policy.slurm import changes

PLACED = {
    "state": "waiting",
    "id": "a" * 16,
    "asked": "tres_per_job:gres/gpu:4;cpus_per_tres:gres/gpu:2",
    "others": "1",
    "was": "max_nodes:2",
    "n": "1",
    "k": "4",
    "nodes": "n1",
    "gpus": "0,1,2,3",
}
PINNED = JobFacts(
    7,
    "PENDING",
    "gpu",
    1,
    0,
    None,
    None,
    60,
    8,
    (),
    ("n1",),
    gpus=15,
    plan=JobPlan(PLACED),
    count=2,
    mem=500,
    own_extra="mine",
)


def text(job: JobFacts, **fields: str) -> JobText:
    comment = segment.put("site ", job.known.texts)
    own = {"required": "", "tres_per_node": "", "tres_per_job": "", "extra": "", **fields}
    return JobText(job.id, "PENDING", 1, comment, **own)


def test_a_pinned_job_is_undone_by_what_its_user_wrote() -> None:
    assert dict(word.split("=", 1) for word in asked.words(PINNED).split()) == {
        "tres_per_job": "gres/gpu:4",
        "tres_per_node": "",
        "req_nodes": "",
        "exc_nodes": "",
        "cpus_per_tres": "gres/gpu:2",
        "max_nodes": "2",
        "cpus_per_task": "1",
        "extra": "mine",
    }


def test_the_number_of_tasks_comes_before_the_gpus_that_the_plugin_fills_in() -> None:
    job = replace(PINNED, plan=JobPlan(PLACED | {"was": "num_tasks:2"}))
    assert asked.words(job).startswith("max_nodes_of_tasks=2 ")


def test_a_job_of_several_nodes_has_its_users_least_cpus_of_a_node_again() -> None:
    assert "pn_min_cpus=1" in asked.words(replace(PINNED, plan=JobPlan({**PLACED, "n": "2"}))).split()
    assert "extra=" not in asked.words(replace(PINNED, own_extra=None)), "a gateway cannot tell it"


@pytest.mark.parametrize("more", [{"share": "30"}, {"tier": "opportunistic"}, {"upgrade": "0"}, {"parked": "0"}])
def test_who_shares_a_gpu_keeps_its_request(more: dict[str, str]) -> None:
    assert asked.words(replace(PINNED, plan=JobPlan({**PLACED, **more}))) == ""


def test_neither_is_a_job_of_an_older_berth_nor_one_that_licences_count_changed() -> None:
    assert asked.words(replace(PINNED, plan=JobPlan({key: PLACED[key] for key in PLACED if key != "was"}))) == ""
    assert asked.words(replace(PINNED, licenses="berth_h100:4")) == ""
    assert asked.words(replace(PINNED, plan=JobPlan({**PLACED, "asked": "req_nodes:" + "n" * 5_000}))) == ""


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tres_per_node": "gres/gpu:3"}, {"state": "later", "n": "2", "k": "3", "cpus": "4", "mem": "500"}),
        ({"tres_per_job": "gres/gpu=4", "required": "n2,n3"}, {"state": "later", "n": "2", "k": "2"}),
        ({"tres_per_job": "gres/gpu:3"}, {"state": "released"}),
        ({"tres_per_job": "gres/gpu:2", "tres_per_node": "gres/gpu:1"}, {"state": "released"}),
        ({"tres_per_job": "gres/gpu:2", "tres_per_task": "gres/gpu:1"}, {"state": "released"}),
        ({}, {"state": "released"}),
    ],
)
def test_a_changed_job_is_planned_by_its_record_or_left_to_slurm(
    fields: dict[str, str], wanted: dict[str, str]
) -> None:
    job = replace(PINNED, gpus=None, required=(), plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    values = asked.anew(job, text(job, **fields))
    assert wanted.items() <= values.texts.items()
    assert not {"nodes", "gpus"} & values.texts.keys()


class Slurm:
    """Notes what is written into jobs."""

    def __init__(self, record: JobText) -> None:
        self.record, self.did = record, list[tuple[str, Any]]()
        self.plan, self.refuses = JobPlan({}), False

    def job(self, _job_id: int) -> JobText:
        return self.record

    def annotate(self, _job_id: int, plan: JobPlan) -> None:
        if self.refuses:
            raise SlurmError("no answer")
        self.plan = plan
        self.did.append(("annotate", plan.texts["state"]))

    def pin_again(self, job: JobFacts) -> None:
        self.did.append(("pin", job.id))

    def release(self, _job_id: int, _reason: str, *, for_now: bool = False) -> bool:
        self.did.append(("release", for_now))
        return True


def step(kept: asked.Asked, job: JobFacts, at: float = 4e9) -> int:
    reading = Reading(at=at, nodes=(), jobs=(job,), partitions=())
    queue: Any = [SimpleNamespace(job=job)]
    return kept.step(queue, reading)


@pytest.mark.parametrize(
    ("fields", "did"),
    [
        ({"tres_per_node": "gres/gpu:3"}, [("annotate", "later")]),
        ({"tres_per_node": "gres/nic:1"}, [("release", False), ("annotate", "released")]),
        ({"tres_per_node": "gres/gpu:g0:1", "required": "n1", "extra": "a[berth/1 nodes=n1 gpus=0]"}, []),
        ({"tres_per_node": "gres/gpu:g0:1", "required": "n1", "extra": "mine"}, [("pin", 7)]),
        ({"tres_per_node": "gres/gpu:g0:1"}, [("release", True)]),
    ],
)
def test_a_mark_is_followed_once_and_goes(tmp_path: Path, fields: dict[str, str], did: list[tuple[str, Any]]) -> None:
    job = replace(PINNED, plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    slurm: Any = Slurm(text(job, **fields))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, job)
    file, mark = tmp_path / "pinned.asked" / "7", tmp_path / "pinned.changed" / "7"
    assert file.read_text().endswith("\n")
    file.rename(mark)
    step(kept, job, at=time.time() - 30.0)
    assert (mark.exists(), slurm.did) == (True, []), "the reading is older than the change"
    step(kept, job)
    assert (mark.exists(), slurm.did[: len(did)]) == (False, did[:1] if did[:1] == [("release", False)] else did)
    step(kept, job)
    assert file.exists()


def test_a_mark_that_was_moved_there_after_the_reading_waits_for_the_next_one(tmp_path: Path) -> None:
    job = replace(PINNED, plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    slurm: Any = Slurm(text(job, tres_per_node="gres/gpu:3"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, job)
    read_at = time.time() - 1.0
    file, mark = tmp_path / "pinned.asked" / "7", tmp_path / "pinned.changed" / "7"
    os.utime(file, (read_at - 60, read_at - 60))
    file.rename(mark)
    step(kept, job, at=read_at)
    assert slurm.did == [], "the number of nodes and CPUs would be those of before the change"
    step(kept, job, at=read_at + 60)
    assert slurm.did == [("annotate", "later")]


@pytest.mark.parametrize("folder", ["changed", "excluded"])
def test_a_mark_keeps_pins_off_a_job_until_it_has_been_read(tmp_path: Path, folder: str) -> None:
    slurm: Any = Slurm(text(PINNED, tres_per_node="gres/gpu:3"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, PINNED)
    mark = tmp_path / f"pinned.{folder}" / "7"
    mark.touch()
    assert (kept.has_changed(7), kept.has_changed(8)) == (True, False)
    step(kept, PINNED, at=time.time() - 30.0)
    assert kept.has_changed(7), "the reading is older than the change"
    step(kept, PINNED)
    assert (kept.has_changed(7), mark.exists()) == (False, False)


@pytest.mark.parametrize("folder", ["changed", "excluded"])
def test_a_mark_from_before_the_clock_was_set_back_keeps_no_pin_off_for_hours(tmp_path: Path, folder: str) -> None:
    slurm: Any = Slurm(text(PINNED, tres_per_node="gres/gpu:3"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, PINNED)
    (tmp_path / f"pinned.{folder}" / "7").touch()
    step(kept, PINNED, at=time.time() - 3_600.0)
    assert not kept.has_changed(7)


OTHER_NODES = replace(PINNED, plan=JobPlan({**PLACED, "others": excluded_nodes.mark_of("n[2-4]")}))


@pytest.mark.parametrize(
    ("written", "record", "handed_over"),
    [
        ("n[2-4]", "n[2-4]", True),
        ("n4,n3,n2", "n4,n3,n2", True),
        ("n3", "n3", False),
        ("", "n[2-4]", False),
        ("n[2-4]", "n3", False),
    ],
)
def test_a_list_that_its_user_wrote_too_is_its_users(
    tmp_path: Path, written: str, record: str, *, handed_over: bool
) -> None:
    slurm: Any = Slurm(text(OTHER_NODES, excluded=record))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, OTHER_NODES)
    mark = tmp_path / "pinned.excluded" / "7"
    mark.write_text(written)
    assert step(kept, OTHER_NODES) == handed_over
    assert not mark.exists()
    assert slurm.did == [("annotate", "waiting")] * handed_over
    if handed_over:
        assert not excluded_nodes.is_ours(record, slurm.plan), "Berth's next list takes its place"
        assert excluded_nodes.closes("", record, slurm.plan) == "", "and a job that closed its partition requires nodes"


def test_marks_of_many_jobs_are_all_read_in_one_pass(tmp_path: Path) -> None:
    slurm: Any = Slurm(text(PINNED))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, PINNED)
    for number in range(1, 4 * asked.MOST_A_PASS):
        (tmp_path / "pinned.excluded" / str(number)).write_text("n3")
    step(kept, PINNED)
    assert not list((tmp_path / "pinned.excluded").iterdir()), "each would keep the pins of its job away"


def test_a_list_is_handed_over_though_slurm_does_not_answer_at_first(tmp_path: Path) -> None:
    slurm: Any = Slurm(text(OTHER_NODES, excluded="n[2-4]"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, OTHER_NODES)
    (tmp_path / "pinned.excluded" / "7").write_text("n[2-4]")
    slurm.refuses = True
    assert (step(kept, OTHER_NODES), kept.has_changed(7)) == (0, True)
    slurm.refuses = False
    assert (step(kept, OTHER_NODES), kept.has_changed(7)) == (1, False)


def test_a_job_that_waits_no_more_leaves_no_file(tmp_path: Path) -> None:
    slurm: Any = Slurm(text(PINNED))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, PINNED)
    kept.step([], Reading(at=4e9, nodes=(), jobs=(), partitions=()))
    assert list((tmp_path / "pinned.asked").iterdir()) == []


def test_a_job_that_is_planned_anew_tells_its_node_of_no_place() -> None:
    text = JobText(7, "PENDING", 0, "[berth/1 state=placed]", "mine[berth/1 nodes=n2 gpus=0,1]", "", "", "")

    assert changes.annotate(text, JobPlan({"state": "later"}))["extra"] == "mine"
    assert "extra" not in changes.annotate(text, JobPlan({"state": "placed"}))
