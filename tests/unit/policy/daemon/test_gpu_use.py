# SPDX-License-Identifier: Apache-2.0
"""GPUs as their nodes tell of them: use, those that a job lets idle, and who reads what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policy.cli.nodes import idle_gpus
from policy.daemon.hear.gpu_use import (
    BELIEVED_FOR,
    FREE_START,
    GpuWord,
    HeardGpus,
    HeldGpu,
    ToldGpu,
    ToldPart,
    read_word,
)
from policy.daemon.passes.overviews import moment_of, overview_of
from policy.formats.slurm_facts import JobFacts
from policy.site.overview import fleet_for, idle_text, queue_for
from tests.unit.policy.daemon.test_overviews import planned
from tests.unit.policy_world import NOW, node, running

HOUR = 3_600
ALICE = 1001
BEGAN = NOW - 3 * HOUR


def heard(gpus: str, name: str = "n1") -> HeardGpus:
    word = read_word(f"berth/1 gpus node={name} gpus={gpus}".encode())
    assert word is not None
    found = HeardGpus()
    found.hear(word, NOW)
    return found


def job(number: int, mask: int, start: float = BEGAN, **more: Any) -> JobFacts:
    return running(number, "n1", mask, 600, start=int(start), holds=(mask,), **more)


@pytest.mark.parametrize(
    "payload",
    [
        b"berth/1 gpus node=n1 gpus=",
        b"berth/1 gpus node=n1 gpus=- parts=",
        b"berth/1 gpus node=n1 gpus=- parts=0:1:1:1:0",
        b"berth/1 gpus node=n1 gpus=- parts=0.1234:1:1:1:7",
        b"berth/1 gpus node=n1 gpus=0:1:2:3:4",
        b"berth/1 gpus node=n1 gpus=64:1:1:0:1:-",
        b"berth/1 gpus node=n1 gpus=0:1:1:101:1:-",
        b"berth/1 gpus node=n 1 gpus=0:1:1:0:1:-",
        b"berth/1 gpus node=n1 gpus=0:1:1:0:1:-,",
        b"berth/1 gpus node=n1 gpus=-1:1:1:0:1:-",
    ],
)
def test_what_is_no_notice_of_gpus(payload: bytes) -> None:
    assert read_word(payload) is None


def test_a_notice_of_gpus() -> None:
    assert read_word(b"berth/1 gpus node=n1 gpus=0:0:0:100:512:698,3:900:900:0:2:-") == GpuWord(
        "n1", (ToldGpu(0, 0, 0, 100, 512, 698), ToldGpu(3, 900, 900, 0, 2, None))
    )


def test_a_notice_of_parts_of_gpus() -> None:
    assert read_word(b"berth/1 gpus node=n1 gpus=- parts=0:0:700:512:5,3.10:900:900:0:47") == GpuWord(
        "n1", (), (ToldPart("0", 0, 700, 512, 5), ToldPart("3.10", 900, 900, 0, 47))
    )


def test_only_what_a_job_holds_is_held_and_idle() -> None:
    found = heard(",".join(f"{gpu}:{HOUR}:{HOUR}:0:9:-" for gpu in range(4)))

    assert found.seen([job(5, 0b0001)], NOW).idle == {("n1", "0", 5): HeldGpu(int(NOW - HOUR), int(NOW - HOUR), 9)}


def test_of_a_shared_gpu_and_of_mig_instances_the_node_names_the_job() -> None:
    parts = f"0:{HOUR}:{HOUR}:0:6,0:0:60:500:5,1.10:{HOUR}:{HOUR}:0:7,2:{HOUR}:{HOUR}:0:8"
    found = heard(f"0:0:{HOUR}:0:500:- parts={parts}")
    jobs = [job(5, 0b0001, share=50), job(6, 0b0001, share=50), job(7, 0)]

    assert {(gpu, number) for _, gpu, number in found.seen(jobs, NOW).idle} == {("0", 6), ("1.10", 7)}
    # The job may have moved on since.
    assert found.seen([running(6, "n2", 1, 600, start=int(BEGAN), holds=(1,))], NOW).idle == {}


def test_a_process_without_a_kernel_is_told_apart_from_none() -> None:
    assert heard(f"0:0:{HOUR}:0:512:-").seen([job(5, 1)], NOW).idle["n1", "0", 5].no_process is None


def test_the_time_before_the_job_and_its_first_ten_minutes_do_not_count() -> None:
    found = heard(f"0:{HOUR}:{HOUR}:0:9:-")

    assert found.seen([job(5, 1, NOW - FREE_START)], NOW).idle == {}
    assert found.seen([job(5, 1, NOW - FREE_START - 60)], NOW).idle["n1", "0", 5].no_kernel == NOW - 60


def test_a_word_counts_until_the_next_one_and_not_for_long() -> None:
    found = heard(f"0:{HOUR}:{HOUR}:0:9:-")
    assert found.seen([job(5, 1)], NOW + BELIEVED_FOR) == ({}, {})
    found = heard(f"0:{HOUR}:{HOUR}:0:9:-")
    found.hear(GpuWord("n1", (ToldGpu(0, 0, 5, 12, 9, None),)), NOW + 1)
    assert found.seen([job(5, 1)], NOW + 2).idle == {}


def overview(*jobs: JobFacts) -> dict[str, Any]:
    seen = heard(f"0:{HOUR}:{HOUR}:0:9:71,1:0:{2 * HOUR}:0:512:-,3:0:0:93:70000:698").seen(jobs, NOW)
    moment = moment_of(*planned([node("n1", used=0b0011)], list(jobs)), seen)
    assert moment is not None
    found: dict[str, Any] = json.loads(json.dumps(overview_of(moment)))
    return found


def test_the_overview_tells_of_gpus_and_of_their_job() -> None:
    found = overview(job(5, 0b0011, user=ALICE))
    held = {"node": "n1", "job": 5}

    assert found["idle"] == [
        {**held, "gpu": "0", "no_kernel": NOW - HOUR, "no_process": NOW - HOUR, "memory_mib": 9},
        {**held, "gpu": "1", "no_kernel": NOW - 2 * HOUR, "no_process": None, "memory_mib": 512},
    ]
    assert found["jobs"][0]["idle"] == {"gpus": 2, "since": NOW - HOUR}
    assert [one["no_kernel_s"] for one in idle_gpus(found["idle"], found["jobs"], found["at"])] == [2 * HOUR, HOUR]


def test_the_overview_tells_what_each_gpu_does() -> None:
    (told,) = overview(job(5, 0b0011, user=ALICE))["nodes"]

    assert told["use"][:4] == [[0, 9, 71], [0, 512, None], None, [93, 70_000, 698]]


def test_what_a_gpu_does_is_told_only_to_users_who_may_see_all_of_its_jobs() -> None:
    own, others = job(5, 0b0001, user=ALICE), job(6, 0b0010, user=1002)
    ((own_node,), (shared,)) = (
        fleet_for(overview(*jobs), ALICE)["nodes"]
        for jobs in ((own, others), (job(5, 0b0011, share=50, user=ALICE), job(7, 0b0001, share=30, user=1002)))
    )

    assert own_node["use"][:4] == [[0, 9, 71], None, None, [93, 70_000, 698]]
    assert shared["use"][:2] == [None, [0, 512, None]]


def test_that_a_job_idles_is_told_only_to_users_who_may_see_the_job() -> None:
    found = overview(job(5, 0b0011, user=ALICE))

    assert "idle" not in json.dumps([fleet_for(found, 1002)["nodes"], queue_for(found, visible=1002)["jobs"]])
    assert (fleet_for(found, 1002)["idle"], len(fleet_for(found, ALICE)["idle"])) == ([], 2)


def test_a_job_of_salloc_is_told_to_be_interactive() -> None:
    told = {"gpus": 8, "name": "interactive", "idle": {"gpus": 1, "since": 0}}

    assert idle_text(told, HOUR) == "1 of its 8 GPUs have run no kernel for 1 h 0 min; it is interactive"
