# SPDX-License-Identifier: Apache-2.0
"""The gateway through pyslurm, on a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, Memory, NodeFacts
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.slurm.interface import Pin
from tests.unit.pyslurm_world import RUNNING, Job, Stumbling, World, held, node

SEGMENT = "[berth/1 state=placed id=7 n=1 k=2 gpus=1,6]"
ODD = b"x\xffy"
PLACE = Pin(("n3",), (1, 6), seats=True, plan=JobPlan({"state": "placed", "id": "7"}))


@pytest.fixture
def world() -> World:
    config = "SelectTypeParameters    = CR_CORE_MEMORY\nDefMemPerCPU            = 1000\nSLURM_VERSION = 25.11.7\n"
    return World(printed={"scontrol show config": config})


def only(world: World) -> JobFacts:
    [job] = world.gateway().read(ended=False).jobs
    return job


def test_a_running_job_holds_exact_gpus(world: World) -> None:
    world.jobs = [
        Job(
            1,
            {"n3": held(1, 6, kinds=("gpu", "seat"))},
            **RUNNING,
            required_nodes="n3",
            gres_per_node={"gres/gpu:g1": 1, "gres/gpu:g6": 1, "gres/seat:g1": 1, "gres/seat:g6": 1},
            admin_comment=f"site {SEGMENT}",
        )
    ]
    reading = world.gateway().read(ended=False)

    [job] = reading.jobs
    assert (job.gpus, job.holds, job.nodes, job.required) == (0b100_0010, (0b100_0010,), ("n3",), ("n3",))
    assert (job.limit, job.start, job.end, job.mem, job.user) == (3_600, 2_000, 5_600, 100, 1000)
    assert job.plan is not None
    assert job.known.texts["id"] == "7"
    assert reading.seen == {"7"}
    used = {one.name: (one.gpus_used, one.seats_used) for one in reading.nodes}
    assert used == {"n1": (0, 0), "n3": (0b100_0010, 0b100_0010)}
    assert [command[0] for command in world.commands] == ["scontrol"] * 5


def test_gpus_of_all_kinds_of_jobs_are_in_use_on_their_nodes(world: World) -> None:
    world.jobs = [
        Job(1, {"n1": held(0), "n3": held(2)}, **RUNNING | {"allocated_nodes": "n[1,3]"}, num_nodes=2, mem=400),
        Job(2, {"n3": {"shard:g7": 30, "gpu:g0": 0}}, **RUNNING, gres_per_node={"gres/shard:g7": 30}),
        Job(3, {"n1": {"gpu:h100": {"count": 3, "indexes": "4,6-7"}}}, **RUNNING | {"allocated_nodes": "n1"}),
        Job(4, {"n1": held(kinds=("gpu",))}, **RUNNING | {"allocated_nodes": "n1", "state": "COMPLETING"}),
        Job(5, {"n1": held(3)}, **RUNNING | {"allocated_nodes": "n1", "state": "COMPLETED"}),
    ]
    reading = world.gateway().read(ended=True)

    assert [job.holds for job in reading.jobs] == [(0b1, 0b100), (0x80,), (0b1101_0000,), (0,), ()]
    assert {one.name: one.gpus_used for one in reading.nodes} == {"n1": 0b1101_0001, "n3": 0b1000_0100}
    assert [job.mem for job in reading.jobs][:2] == [200, 100]


def test_requests_that_pyslurm_cannot_read_are_asked_for_once(world: World) -> None:
    world.jobs = [Job(1, gres_per_node={}), Job(2, gres_per_node={}), Job(3, gres_per_node={}), Job(4)]
    world.printed["squeue"] = (
        "1|N/A|gres/gpu:3|N/A|N/A|\n2|N/A|N/A|N/A|gres/gpu:1|\n3|(null)|(null)|N/A|N/A|\n9|N/A|gres/gpu:1|N/A|N/A|\n"
    )
    gateway = world.gateway()
    first, second = gateway.read(ended=False), gateway.read(ended=False)

    assert [job.wants_gpus for job in first.jobs] == [True, True, False, True]
    assert [job.gpus for job in first.jobs] == [None] * 4
    assert second.jobs == first.jobs
    [asked] = [command for command in world.commands if command[0] == "squeue"]
    assert "--jobs=1,2,3" in asked

    world.jobs[2] = Job(3, gres_per_node={}, priority=6)
    gateway.read(ended=False)
    world.jobs[2] = Job(3, gres_per_node={}, admin_comment=SEGMENT)
    gateway.read(ended=False)
    listed = [word for command in world.commands for word in command if word.startswith("--jobs")]
    assert listed == ["--jobs=1,2,3", "--jobs=3"]


def test_a_job_pinned_by_job_is_seen_as_pinned(world: World) -> None:
    world.jobs = [Job(1, gres_per_node={}, required_nodes="n3", admin_comment=SEGMENT)]
    world.printed["squeue"] = "1|N/A|gres/gpu:g1:1,gres/gpu:g6:1|N/A|N/A|\n"

    assert only(world).gpus == 0b100_0010


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"array_id": 1, "array_tasks_waiting": "0-12:4", "array_tasks_parallel": 2}, ("ARRAY", None, "0,4,8,12", 2)),
        ({"array_id": 1, "array_tasks_waiting": "3-5,9"}, ("ARRAY", None, "3-5,9", None)),
        ({"array_id": 9, "array_task_id": 3}, ("PENDING", 3, "", None)),
        # pyslurm has no task 0.
        ({"array_id": 9, "array_task_id": None}, ("PENDING", 0, "", None)),
        ({}, ("PENDING", None, "", None)),
    ],
)
def test_an_array_and_its_tasks_are_told_apart(world: World, values: dict[str, Any], expected: tuple[Any, ...]) -> None:
    world.jobs = [Job(1, **values)]
    job = only(world)

    assert (job.state, job.task, job.tasks, job.at_once) == expected
    assert job.array == values.get("array_id", 0)


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "EXPEDITING"])
def test_a_job_that_was_put_back_on_hold_and_released_waits_as_any_other(world: World, state: str) -> None:
    world.jobs = [Job(1, state=state, eligible_time=1_100, required_nodes="n3", admin_comment=SEGMENT)]
    job = only(world)

    assert (job.state, job.begin) == ("PENDING", 1_100)


def test_small_fields_of_a_job_are_in_slurms_words(world: World) -> None:
    world.jobs = [
        Job(
            1,
            constraints=["v100|h100"],
            licenses=["matlab:2", "fluent"],
            account="lab",
            name="my train",
            reservation="later",
            heterogeneous_id=1,
            excluded_nodes="n[4-5]",
            state_reason="ReqNodeNotAvail, May be reserved for other job",
            eligible_time=4_600,
            mem=None,
        )
    ]
    world.printed["scontrol show federation"] = "Federation: us\n"
    reading = world.gateway().read(ended=False)

    [job] = reading.jobs
    assert (job.features, job.licenses, job.reservation, job.het) == ("v100|h100", "matlab:2,fluent", "later", 1)
    assert (job.account, job.name) == ("lab", "my train")
    assert (job.excluded, job.begin, job.mem, job.start, job.may_start) == (("n4", "n5"), 4_600, None, None, True)
    assert (reading.federated, reading.version, reading.memory) == (True, "25.11.7", Memory(per_cpu=1000))


def test_a_job_without_a_limit_has_no_end(world: World) -> None:
    world.jobs = [Job(1, {"n3": held(1)}, **RUNNING | {"end_time": 1 << 40}, time_limit=None)]

    assert (only(world).limit, only(world).end) == (None, None)


def test_ended_jobs_come_only_when_asked_for_but_their_nonces_always(world: World) -> None:
    world.jobs = [Job(1, **RUNNING | {"state": "COMPLETED"}, admin_comment=SEGMENT), Job(2)]
    gateway = world.gateway()

    assert [job.id for job in gateway.read(ended=False).jobs] == [2]
    assert gateway.read(ended=False).seen == {"7"}
    assert [job.id for job in gateway.read(ended=True).jobs] == [1, 2]


def test_what_did_not_change_is_the_same_object(world: World) -> None:
    world.jobs = [Job(1, {"n3": held(1)}, **RUNNING), Job(2), Job(3)]
    gateway = world.gateway()
    first = gateway.read(ended=False)
    # New objects each time, as pyslurm loads them; job 2 changed, and in job 3 only what Berth does not look at.
    world.jobs = [Job(1, {"n3": held(1)}, **RUNNING), Job(2, priority=9), Job(3, memory_per_node=None)]
    world.nodes = [node("n1", state="MIXED", allocated_cpus=3), node("n3")]
    second = gateway.read(ended=False)

    same = [old is new for old, new in zip(first.jobs, second.jobs, strict=True)]
    assert same == [True, False, True]
    assert second.jobs[1].priority == 9
    assert [old is new for old, new in zip(first.nodes, second.nodes, strict=True)] == [False, True]


def test_a_job_that_is_gone_leaves_no_trace(world: World) -> None:
    world.jobs = [Job(1, {"n3": held(1)}, **RUNNING)]
    gateway = world.gateway()
    gateway.read(ended=False)
    world.jobs = []
    reading = gateway.read(ended=False)

    assert (reading.jobs, [one.gpus_used for one in reading.nodes]) == ((), [0, 0])


def test_nodes_are_read_with_their_gpus(world: World) -> None:
    world.nodes = [
        node("n1", state="MIXED+COMPLETING", allocated_cpus=2, allocated_memory=200),
        node("n2", state="IDLE+DRAIN"),
        node("n3", state="IDLE+NOT_RESPONDING", configured_gres={"gpu:g0": 1, "gpu:h100": 4, "gpu": 2}),
        node("n4", configured_gres={}, active_features=[], partitions=[]),
    ]
    found = world.gateway().read(ended=False).nodes

    assert found[0] == NodeFacts(
        *("n1", 16, 2, 64_000, 200, 1, True, True, 8, 0, 8, 0, 0), frozenset({"v100"}), frozenset({"gpu"})
    )
    assert [one.up for one in found] == [True, False, False, True]
    assert [(one.gpus, one.loose, one.seats) for one in found[2:]] == [(1, 6, 0), (0, 0, 0)]
    assert (found[3].features, found[3].partitions) == (frozenset(), frozenset())


def test_what_slurm_keeps_for_the_system_is_no_memory_for_jobs(world: World) -> None:
    world.nodes = [node("n1", memory_reserved_for_system=4_000), node("n2", memory_reserved_for_system=70_000)]

    assert [one.mem for one in world.gateway().read(ended=False).nodes] == [60_000, 0]


def test_a_sites_own_gres_does_not_stop_the_reading(world: World) -> None:
    odd = vars(node("n1"))
    odd.pop("configured_gres")
    world.nodes = [Stumbling(**odd), node("n3")]
    recorded = (Path(__file__).parents[2] / "data" / "slurm-26.05" / "scontrol-show-node").read_text()
    world.printed["scontrol show node"] = recorded
    world.jobs = [Job(1, gres_per_node=ValueError("invalid literal for int(): '10G'"))]
    world.printed["squeue"] = "1|gres/tmpdisk:10G,gres/gpu:g1:1|N/A|N/A|N/A|\n"
    reading = world.gateway().read(ended=False)

    assert [(one.gpus, one.seats) for one in reading.nodes] == [(8, 8), (8, 8)]
    assert (reading.jobs[0].gpus, reading.jobs[0].wants_gpus) == (0b10, True)


def test_partitions_and_reservations_are_read_by_scontrol(world: World) -> None:
    world.printed["scontrol show partition"] = "PartitionName=gpu Default=YES State=UP MaxTime=02:00:00\n"
    world.printed["scontrol show reservation"] = (
        "ReservationName=later StartTime=10 EndTime=20 Nodes=n[1-2] NodeCnt=2 Users=ann TRES=cpu=2\n"
    )
    reading = world.gateway().read(ended=False)

    assert [(one.name, one.default, one.max_time) for one in reading.partitions] == [("gpu", True, 7_200)]
    [later] = reading.reservations
    assert (later.name, later.nodes, later.start, later.end, later.users) == ("later", ("n1", "n2"), 10, 20, ("ann",))


def test_foreign_bytes_are_read_as_they_are(world: World) -> None:
    problem = UnicodeDecodeError("utf-8", ODD, 1, 2, "invalid start byte")
    world.jobs = [Job(1, admin_comment=problem, extra=problem)]

    assert (only(world).own_extra or "").encode("utf-8", "surrogateescape") == ODD


def test_nodes_that_berth_excluded_are_read_as_nobodys_wish(world: World) -> None:
    comment = f"[berth/1 state=placed id=7 others={mark_of('n[1-2]')}]"
    world.jobs = [
        Job(number, excluded_nodes=excluded, admin_comment=comment)
        for number, excluded in enumerate(("n[1-2]", "n2,n1", "n2"), 1)
    ]

    assert [job.excluded for job in world.gateway().read(ended=False).jobs] == [(), (), ("n2",)]


def test_changes_are_written_by_scontrol(world: World) -> None:
    world.jobs = [
        Job(1, gres_per_node={}, required_nodes="n3"),
        Job(2, gres_per_node={"gres/gpu:g1": 1}, admin_comment=SEGMENT),
        Job(3, array_id=3, array_tasks_waiting="1-4"),
    ]
    by_job = {"job_id": 1, "job_state": ["PENDING"], "tres_per_job": "gres/gpu:g1:1"}
    by_node = {"job_id": 2, "job_state": ["PENDING"], "admin_comment": SEGMENT, "tres_per_node": "gres/gpu:g1:1"}
    array = {"job_id": 3, "job_state": ["PENDING"], "tres_per_node": "gres/gpu:2"}
    world.printed["scontrol show job"] = json.dumps({"jobs": [by_job, by_node, array]})
    world.printed["squeue"] = "1|N/A|gres/gpu:g1:1|N/A|N/A|\n"
    gateway = world.gateway()
    gateway.read(ended=False)

    gateway.pin(1, PLACE)
    assert gateway.release(2, "because")
    gateway.pin("3_2", PLACE)

    updates = [set(command[2:]) for command in world.commands if command[1] == "update"]
    assert [next(word for word in words if word.startswith("JobId=")) for words in updates] == [
        *("JobId=1", "JobId=2", "JobId=3_2")
    ]
    assert "TresPerJob=gres/gpu:g1:1,gres/gpu:g6:1,gres/seat:g1:1,gres/seat:g6:1" in updates[0]
    assert {"TresPerNode=gres/gpu:2", "ReqNodeList=", "Extra="} <= updates[1]


class Odd(SimpleNamespace):
    """A node with a count that pyslurm cannot read."""

    @property
    def effective_cpus(self) -> int:
        raise ValueError("an odd number")


def test_every_failure_is_a_sentence(world: World) -> None:
    gateway = world.gateway()
    world.refusal = "Unable to contact slurm controller"

    with pytest.raises(SlurmError, match="Slurm cannot be read: Unable"):
        gateway.read(ended=False)
    world.refusal = ""
    world.nodes = [Odd(**vars(node("n1")))]
    with pytest.raises(SlurmError, match="stumbled over an odd number; set gateway"):
        gateway.read(ended=False)


def test_after_a_failure_the_next_reading_is_whole(world: World) -> None:
    world.jobs = [Job(1)]
    gateway = world.gateway()
    first = gateway.read(ended=False)
    world.refusal = "Unable to contact slurm controller"
    with pytest.raises(SlurmError):
        gateway.read(ended=False)
    world.refusal = ""
    world.jobs = [Job(1), Job(2)]
    second = gateway.read(ended=False)

    assert [job.id for job in second.jobs] == [1, 2]
    assert second.jobs[0] is first.jobs[0]
