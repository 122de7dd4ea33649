# SPDX-License-Identifier: Apache-2.0
"""GPUs that a job holds and lets idle: what a node says, what berthd makes of it, and who reads what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policy.cli.nodes import idle_gpus
from policy.daemon.hear.idle import BELIEVED_FOR, FREE_START, HeldGpu, IdleGpus, IdleWord, read_word
from policy.daemon.passes.overviews import moment_of, overview_of
from policy.formats.slurm_facts import JobFacts
from policy.site.overview import fleet_for, idle_text, queue_for
from tests.unit.policy.daemon.test_overviews import planned
from tests.unit.policy_world import NOW, node, running

HOUR = 3_600
ALICE = 1001
BEGAN = NOW - 3 * HOUR


def heard(gpus: str, name: str = "n1") -> IdleGpus:
    word = read_word(f"berth/1 idle node={name} gpus={gpus}".encode())
    assert word is not None
    found = IdleGpus()
    found.hear(word, NOW)
    return found


def job(number: int, mask: int, start: float = BEGAN, **more: Any) -> JobFacts:
    return running(number, "n1", mask, 600, start=int(start), holds=(mask,), **more)


@pytest.mark.parametrize(
    "payload",
    [
        b"berth/1 idle node=n1 gpus=",
        b"berth/1 idle node=n1 gpus=0:1:2",
        b"berth/1 idle node=n1 gpus=64:1:1:1",
        b"berth/1 idle node=n 1 gpus=-",
        b"berth/1 idle node=n1 gpus=0:1:1:1,",
        b"berth/1 idle node=n1 gpus=-1:1:1:1",
    ],
)
def test_what_is_no_notice_of_idle_gpus(payload: bytes) -> None:
    assert read_word(payload) is None


def test_a_notice_of_idle_gpus() -> None:
    assert read_word(b"berth/1 idle node=n1 gpus=0:0:700:512,3:900:900:2") == IdleWord(
        "n1", ((0, 0, 700, 512), (3, 900, 900, 2))
    )
    assert read_word(b"berth/1 idle node=n1 gpus=-") == IdleWord("n1", ())


def test_only_what_a_job_holds_alone_is_held_and_idle() -> None:
    found = heard(",".join(f"{gpu}:{HOUR}:{HOUR}:9" for gpu in range(4)))
    told = found.held([job(5, 0b0001), job(6, 0b0010, share=50)], NOW)

    assert told == {("n1", 0): HeldGpu(int(NOW - HOUR), int(NOW - HOUR), 9)}


def test_a_process_without_a_kernel_is_told_apart_from_none() -> None:
    assert heard(f"0:0:{HOUR}:512").held([job(5, 1)], NOW)["n1", 0].no_process is None


def test_the_time_before_the_job_and_its_first_ten_minutes_do_not_count() -> None:
    found = heard(f"0:{HOUR}:{HOUR}:9")

    assert found.held([job(5, 1, NOW - FREE_START)], NOW) == {}
    assert found.held([job(5, 1, NOW - FREE_START - 60)], NOW)["n1", 0].no_kernel == NOW - 60


def test_a_word_counts_until_the_next_one_and_not_for_long() -> None:
    found = heard(f"0:{HOUR}:{HOUR}:9")
    assert found.held([job(5, 1)], NOW + BELIEVED_FOR) == {}
    found = heard(f"0:{HOUR}:{HOUR}:9")
    found.hear(IdleWord("n1", ()), NOW + 1)
    assert found.held([job(5, 1)], NOW + 2) == {}


def overview(*jobs: JobFacts) -> dict[str, Any]:
    idle = heard(f"0:{HOUR}:{HOUR}:9,1:0:{2 * HOUR}:512").held(jobs, NOW)
    moment = moment_of(*planned([node("n1", used=0b0011)], list(jobs)), idle)
    assert moment is not None
    found: dict[str, Any] = json.loads(json.dumps(overview_of(moment)))
    return found


def test_the_overview_tells_of_gpus_and_of_their_job() -> None:
    found = overview(job(5, 0b0011, user=ALICE))
    (told,) = found["nodes"]

    assert told["gpus"][0]["idle"] == {"no_kernel": NOW - HOUR, "no_process": NOW - HOUR, "memory_mib": 9}
    assert told["gpus"][1]["idle"] == {"no_kernel": NOW - 2 * HOUR, "memory_mib": 512}
    assert found["jobs"][0]["idle"] == {"gpus": 2, "since": NOW - HOUR}
    assert [one["no_kernel_s"] for one in idle_gpus(found["nodes"], found["jobs"], found["at"])] == [2 * HOUR, HOUR]


def test_that_a_job_idles_is_told_to_those_alone_who_may_see_the_job() -> None:
    found = overview(job(5, 0b0011, user=ALICE))

    assert "idle" not in json.dumps([fleet_for(found, 1002)["nodes"], queue_for(found, visible=1002)["jobs"]])
    assert "idle" in json.dumps(fleet_for(found, ALICE)["nodes"])


def test_a_job_of_salloc_is_told_to_be_interactive() -> None:
    told = {"gpus": 8, "name": "interactive", "idle": {"gpus": 1, "since": 0}}

    assert idle_text(told, HOUR) == "1 of its 8 GPUs have run no kernel for 1 h 0 min; it is interactive"
