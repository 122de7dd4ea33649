# SPDX-License-Identifier: Apache-2.0
"""Slurm's own limit for a Prolog ends before Berth's: the node is drained as Slurm does it, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, await_nothing, let_go, nodes_of, place, said, waiting_body

pytestmark = pytest.mark.hard
"""A minute or more: `make test-hard`."""

NODE = "n4"
OTHERS = "n1,n2,n3"
CONF = "/etc/slurm/slurm.conf"


@contextmanager
def prolog_limit(slurm: Slurm, seconds: int) -> Iterator[None]:
    """A cluster whose Slurm gives Prolog and Epilog so many seconds."""
    change = "scontrol reconfigure; for i in $(seq 100); do scontrol ping | grep -q UP && break; sleep 0.1; done"
    slurm.target.bash(f"sed -i '$aPrologEpilogTimeout={seconds}' {CONF}; {change}", user="root")
    try:
        yield
    finally:
        slurm.target.bash(f"sed -i '/^PrologEpilogTimeout=/d' {CONF}; {change}", user="root")


def back(slurm: Slurm) -> bool:
    """Gives the node back, as an admin does."""
    state = slurm.target.run(["sinfo", "-h", "-n", NODE, "-o", "%T"]).out.split()[0]
    if "drain" in state:
        slurm.target.run(["scontrol", "update", f"NodeName={NODE}", "State=RESUME"], user="root", check=False)
    return state == "idle"


def test_a_prolog_that_slurm_kills_leaves_nothing_and_the_next_job_works(slurm: Slurm) -> None:
    node = nodes_of(slurm)[NODE]
    words = ["-x", OTHERS, "-n1", "--gpu-share=30"]
    with prolog_limit(slurm, 4):
        node.wish(slow_start=120)
        try:
            job = slurm.submit(*words, body="echo the user's first line")
            until(
                "the node to be drained",
                lambda: "drain" in slurm.target.run(["sinfo", "-h", "-n", NODE, "-o", "%T"]).out,
            )
            # Slurm holds the job: it would go on and on.
            until("the job to be held", lambda: "held" in slurm.show(job).get("Reason", ""))
        finally:
            node.wish()
        advice = node.bash("/opt/berth/bin/berth doctor node", check=False)
        slurm.target.run(["scancel", str(job)])
        # Slurm may have killed its Epilog too: then the guard finds what is left within a minute.
        await_nothing(node, 180)
        # Not before that Epilog's end, which drains the node once more.
        until("the node to be back", lambda: back(slurm))

        following = slurm.submit(*words, body=waiting_body())
        slurm.wait_state(following, {"RUNNING"})
        assert said(slurm, following)["mps"] is True
        assert place(slurm, following)[0] == NODE
        let_go(slurm, following)
        slurm.finish(following)
    assert "Slurm would kill the Prolog and drain the node" in advice
    assert "first line" not in slurm.target.bash(f"cat {slurm.shared}/{job}.out", user="root", check=False).out
    assert_nothing_left(slurm, NODE)
