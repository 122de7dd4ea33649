# SPDX-License-Identifier: Apache-2.0
"""A program that brings MPS down takes its neighbours along: they run again, and it is kept apart for a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, guard_said, let_go, nodes_of, place, run_again, said, waiting_body
from .test_node_trouble import tell

pytestmark = pytest.mark.hard
"""A minute, and the hour-long memory of who brought MPS down has to be wiped: `make test-hard`."""

NODE = "n2"


@pytest.fixture(autouse=True)
def forgiven(slurm: Slurm) -> Iterator[None]:
    """Clears what berthd and the node remember for an hour, so that later tests do not meet it."""
    yield
    nodes_of(slurm)[NODE].bash("rm -rf /run/berth/culprits")
    slurm.berthd("restart")
    slurm.berthd("start")


def test_neighbours_are_requeued_and_the_cause_is_kept_apart(slurm: Slurm) -> None:
    slurm.hold_gpus(NODE, range(2, 8))
    words = ["-w", NODE, "-n1"]
    victim = slurm.submit(*words, "--gpu-share=30", "--gpu-mem=2G", body=waiting_body())
    slurm.wait_state(victim, {"RUNNING"})
    said(slurm, victim, 1)
    # Long enough for a guard that looks once a second on a busy machine: it knows a process by having seen it.
    culprit = slurm.submit(*words, "--gpu-share=50", body="fake-cuda-app hold=10 fault")
    slurm.wait_state(culprit, {"RUNNING", "FAILED"})
    assert place(slurm, culprit) == place(slurm, victim)
    slurm.wait_state(culprit, {"FAILED"})
    guard_said(slurm, NODE, f"the cause was job {culprit}")
    guard_said(slurm, NODE, f"job {victim} lost its GPU")
    until(f"job {victim} to be requeued", lambda: slurm.show(victim).get("Restarts") == "1" or None)

    run_again(slurm, victim)
    assert slurm.state(culprit) == "FAILED"
    until("it to use its GPU again", lambda: said(slurm, victim, 0).get("memory") == [2048] or None)
    assert said(slurm, victim)["percent"] == 30
    assert tell(slurm, victim)["share"] == "30"
    assert place(slurm, victim)[0] == NODE

    # Before the fault both were on one GPU; now a job of the same user gets the other, and a third none beside them.
    apart = slurm.submit(*words, "--gpu-share=10", body=waiting_body())
    slurm.wait_state(apart, {"RUNNING"})
    assert {place(slurm, apart)[1], place(slurm, victim)[1]} == {"0", "1"}
    third = slurm.submit(*words, "--gpu-share=10", body=waiting_body())
    slurm.settle()
    assert slurm.state(third) == "PENDING"
    let_go(slurm, apart)
    slurm.wait_state(third, {"RUNNING"})
    assert said(slurm, third)["mps"] is True
    let_go(slurm, victim, third)
    for job in (victim, apart, third):
        slurm.finish(job)
    slurm.clear()
    assert_nothing_left(slurm, NODE)
