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
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.formats.slurm_syntax import excluded_nodes
from policy.slurm import changes

PLACED = {
    "state": "waiting",
    "id": "a" * 16,
    "asked": "tres_per_job:gres/gpu:4;cpus_per_tres:gres/gpu:2",
    "others": "1",
    "was": "max_nodes:1",
    "n": "1",
    "k": "4",
    "cpus": "8",
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
        "max_nodes": "1",
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


@pytest.mark.parametrize(
    "plan", [{"spread": "1:1000:0"}, {"cpus": ""}, {"was": "min_nodes:1;max_nodes:4"}], ids=["spread", "whole", "range"]
)
def test_a_changed_job_whose_record_does_not_tell_how_it_may_lie_is_left_to_slurm(plan: dict[str, str]) -> None:
    """GPUs on nodes in any way, whole nodes, `-N 1-4`: on one place with free GPUs it could wait longer than there."""
    known = JobPlan(
        {key: value for key, value in {**PLACED, "asked": "tres_per_job:gres/gpu:4", **plan}.items() if value}
    )
    job = replace(PINNED, gpus=None, required=(), plan=known)
    assert asked.anew(job, text(job, tres_per_job="gres/gpu:4")).texts["state"] == "released"


class Slurm:
    """Notes what is written into jobs."""

    def __init__(self, record: JobText) -> None:
        self.record, self.did = record, list[tuple[str, Any]]()
        self.plan, self.refuses, self.tried = JobPlan({}), set[int](), list[int]()

    def job(self, _job_id: int) -> JobText:
        return self.record

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        if job_id in self.refuses:
            raise NoAnswer("no answer")
        self.plan = plan
        self.did.append(("annotate", plan.texts["state"]))

    def pin_again(self, job: JobFacts) -> None:
        self.did.append(("pin", job.id))

    def release(self, job_id: int, _reason: str, *, for_now: bool = False) -> bool:
        self.tried.append(job_id)
        if job_id in self.refuses:
            raise SlurmError("Invalid node name specified")
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


@pytest.mark.parametrize(
    ("fields", "did"),
    [
        ({"tres_per_node": "gres/gpu:3"}, [("release", False), ("annotate", "later")]),
        ({}, [("release", False)]),
    ],
)
@pytest.mark.parametrize("marked", [False, True])
def test_a_job_whose_gpus_an_administrator_changed_is_off_its_place(
    tmp_path: Path, fields: dict[str, str], did: list[tuple[str, Any]], *, marked: bool
) -> None:
    # No plugin completes such a change, and no pass would look after the job on its old node.
    job = replace(PINNED, gpus=None, plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    slurm: Any = Slurm(text(job, required="n1", **fields))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    if marked:
        (tmp_path / "pinned.changed").mkdir()
        (tmp_path / "pinned.changed" / "7").touch()
    assert (step(kept, job), kept.has_changed(7)) == (1, False)
    assert slurm.did == did


def test_a_job_that_closes_its_partition_requires_no_nodes_in_slurm(tmp_path: Path) -> None:
    """Its owner's change is complete: it is planned anew."""
    job = replace(PINNED, gpus=None, plan=JobPlan({**PLACED, "asked": "tres_per_node:gres/gpu:4"}))
    slurm: Any = Slurm(text(job, tres_per_node="gres/gpu:2"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    (tmp_path / "pinned.changed").mkdir()
    (tmp_path / "pinned.changed" / "7").touch()
    assert (step(kept, job), slurm.did) == (1, [("annotate", "later")])


def test_jobs_that_slurm_does_not_change_keep_no_other_from_leaving_its_place(tmp_path: Path) -> None:
    job = replace(PINNED, gpus=None, plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    slurm: Any = Slurm(text(job))
    slurm.refuses = set(range(100, 100 + asked.MOST_A_PASS))
    jobs = (*(replace(job, id=number) for number in sorted(slurm.refuses)), job)
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    passes = [kept.step([], Reading(at=4e9 + second, nodes=(), jobs=jobs, partitions=())) for second in range(3)]
    assert passes == [0, 1, 1]
    assert slurm.tried == [*range(100, 110), 7, 7], "those that Slurm has refused are not tried in each pass"
    kept.step([], Reading(at=4e9 + 90, nodes=(), jobs=jobs, partitions=()))
    assert slurm.tried.count(100) == 2


@pytest.mark.parametrize(
    "job", [PINNED, replace(PINNED, gpus=None, required=("n2",)), replace(PINNED, gpus=None, state="RUNNING")]
)
def test_another_job_keeps_its_nodes(tmp_path: Path, job: JobFacts) -> None:
    slurm: Any = Slurm(text(job))
    assert step(asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again), job) == 0
    assert slurm.did == []


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
    slurm.refuses = {7}
    assert (step(kept, OTHER_NODES), kept.has_changed(7)) == (0, True)
    slurm.refuses = set()
    assert (step(kept, OTHER_NODES), kept.has_changed(7)) == (1, False)


def test_a_changed_job_is_planned_anew_though_slurm_does_not_answer_at_first(tmp_path: Path) -> None:
    job = replace(PINNED, plan=JobPlan({**PLACED, "asked": "tres_per_job:gres/gpu:4"}))
    slurm: Any = Slurm(text(job, tres_per_node="gres/gpu:3"))
    kept = asked.Asked(slurm, tmp_path / "pinned", slurm.pin_again)
    step(kept, job)
    (tmp_path / "pinned.asked" / "7").rename(tmp_path / "pinned.changed" / "7")
    slurm.refuses = {7}
    assert (step(kept, job), kept.has_changed(7)) == (0, True)
    slurm.refuses = set()
    assert (step(kept, job), kept.has_changed(7)) == (1, False)


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
