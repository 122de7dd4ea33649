# SPDX-License-Identifier: Apache-2.0
"""Ordinary users attack a real cluster: everything is refused or harmless, and a victim's job goes on untouched."""

from __future__ import annotations

import pytest

from tests.slurm.harness import Slurm
from tests.slurm.nodes import assert_nothing_left, nodes_of

from . import attacks, mutations
from .world import (
    NODE,
    all_gone,
    assert_logs_are_our_own,
    assert_nothing_gained,
    beside_a_victim,
    carry_out,
    got_through,
    own_jobs,
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1_200)]


def test_no_attack_gets_through(slurm: Slurm) -> None:
    with beside_a_victim(slurm) as victim:
        names = {**own_jobs(slurm), "V": str(victim.runs), "PIPE": victim.pipe}
        found = []
        for rows in (attacks.SUBMISSIONS, attacks.UPDATES, attacks.OTHERS, attacks.CONTROLLER, attacks.LINKS):
            found += got_through(slurm.target, rows, names)
            assert_nothing_gained(slurm, victim.runs)
        found += got_through(nodes_of(slurm)[NODE].target, attacks.NODE, names)
        all_gone(slurm)
        assert not found, "\n".join(found)
        assert_logs_are_our_own(slurm)
    assert_nothing_left(slurm)
    assert slurm.target.run(["svc", "slurmctld", "status"], user="root", check=False).rc == 0


def test_what_a_hole_would_have_left_is_seen(slurm: Slurm) -> None:
    """The judge of all other tests here: root's updates pass the plugin."""
    job = own_jobs(slurm)["HELD"]
    for change in ("TresPerNode=gres/seat:g0:1", "TresPerNode=gres/shard:g0:5", "TresPerNode=xgres/gpu:g1:1"):
        slurm.target.run(["scontrol", "update", f"JobId={job}", change], user="root")
        with pytest.raises(AssertionError, match=f"job {job}"):
            assert_nothing_gained(slurm, int(job))


def test_there_are_as_many_attacks_as_the_page_says() -> None:
    rows = (*attacks.SUBMISSIONS, *attacks.UPDATES, *attacks.OTHERS, *attacks.CONTROLLER, *attacks.LINKS, *attacks.NODE)
    assert len(rows) >= 280
    assert len({(row.name, row.command) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 1), *(pytest.param(seed, 10, marks=pytest.mark.hard) for seed in range(2, 6))]
)
def test_nor_does_one_that_was_drawn(slurm: Slurm, seed: int, rounds: int) -> None:
    with beside_a_victim(slurm) as victim:
        for number in range(rounds):
            names = {**own_jobs(slurm), "V": str(victim.runs), "PIPE": victim.pipe}
            drawn = mutations.drawn(seed * 1_000 + number, 60, ("PINNED", "HELD", "PLAIN", "PACKED"))
            for _ in carry_out(slurm.target, drawn, names):
                pass
            assert_nothing_gained(slurm, victim.runs)
            slurm.target.bash(
                "squeue -h -u alice -t PD -o %i | xargs -r -n1 scontrol release", user="alice", check=False
            )
            assert_nothing_gained(slurm, victim.runs)
            all_gone(slurm)
    assert_nothing_left(slurm)
