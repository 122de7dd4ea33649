# SPDX-License-Identifier: Apache-2.0
"""Requests past the stock commands: no other user's job changes, nobody reads others' words, and all daemons live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.slurm.failing import PYTHON
from tests.slurm.harness import Slurm
from tests.slurm.nodes import assert_nothing_left
from tests.slurm.test_notice import epilogs
from tests.slurm.test_planner import segment_of
from tests.slurm.test_preflight import fly

from . import raw
from .attacks import BERTHS, OWN, POSITION, SEGMENT, SLURMS, Attack
from .world import ATTACKER, VICTIM, all_gone, assert_nothing_gained, carry_out, got_through, jobs_of, own_jobs

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1_200)]

HIS_WORDS = "the_words_of_bob"
FLIES = (
    f"echo {HIS_WORDS}; until [ -e /home/tests/let-{HIS_WORDS} ]; do sleep 0.5; done; python3 -c 'import {HIS_WORDS}'"
)
KEPT = ("comment", "dependency", "job_state", "name", "partition", "restart_cnt", "time_limit")
"""Fields of his jobs that no plan changes."""
FORMS = ("gres/shard:1", "gres/shard:g0:1", "gres/gpu:1,gres/shard:g0:1", "gres/seat:g0:1")

FIXED = (
    raw.sbatch([("admin_comment", SEGMENT)], refusal=SLURMS),
    raw.change([("admin_comment", SEGMENT)], refusal=SLURMS),
    raw.sbatch([("extra", SEGMENT)], refusal=BERTHS),
    raw.sbatch([("user_id", "0")], refusal=SLURMS),
    raw.sbatch([("tres_per_node", "gres/gpu:g0:1")], "", POSITION),
    *(raw.sbatch([("partition", "plain"), (field, form)], "", OWN) for field in raw.TRES[4:] for form in FORMS),
    *(raw.sbatch([(field, form)], "-p plain", OWN) for field in raw.TRES[:2] for form in FORMS),
    *(raw.change([(field, form)], "PLAIN", OWN) for field in raw.TRES[4:] for form in FORMS),
    *(raw.change([("partition", "plain"), ("tres_per_node", form)], "HELD", OWN) for form in FORMS),
    *(raw.sbatch([("spank_job_env", f"BERTH_PREFLIGHT_JOB=${name}")], "-H --gpus=1") for name in "VWF"),
)


@dataclass(frozen=True, slots=True)
class Flight:
    """A pre-flight of the victim's that runs, and the job that waits for it."""

    first: int
    job: int


@contextmanager
def beside_a_flight(slurm: Slurm) -> Iterator[Flight]:
    """Both have to be as they were, and afterwards the one has to fail and the other to learn of what."""
    slurm.target.bash(f"rm -f /home/tests/let-{HIS_WORDS}", user="root")
    first, job = fly(slurm, "--preflight=9", "--gpus=2", "-J", HIS_WORDS, body=FLIES, user=VICTIM)
    slurm.wait_state(first, {"RUNNING"})
    slurm.passes()
    before = records(slurm, first, job)
    daemons = pids(slurm)
    yield Flight(first, job)
    slurm.passes(4)
    assert records(slurm, first, job) == before, "a job of another user changed"
    assert pids(slurm) == daemons, "a daemon began anew"
    assert slurm.berthd_status().get("problem", "") == ""


def records(slurm: Slurm, *jobs: int) -> dict[int, dict[str, Any]]:
    found = {job["job_id"]: {name: job[name] for name in KEPT} for job in jobs_of(slurm, VICTIM)}
    return {job: found[job] for job in jobs}


def pids(slurm: Slurm) -> str:
    """The daemons of the controller; those of berthd are the children of one."""
    return slurm.target.bash("pgrep -o -x slurmctld; pgrep -o -f bin/berthd", user="root").out


def assert_tells_nothing(slurm: Slurm) -> None:
    told = [(job["job_id"], job["admin_comment"]) for job in jobs_of(slurm, ATTACKER) if HIS_WORDS in str(job)]
    assert told == [], "a job of hers has another user's words"


def carried_out(slurm: Slurm, attacks: list[Attack] | tuple[Attack, ...], names: dict[str, str]) -> None:
    for one, code, text in carry_out(slurm.target, attacks, names):
        assert code != 99, f"{one.name}: {text}"


def test_no_raw_request_reaches_anothers_job(slurm: Slurm) -> None:
    raw.library(slurm)
    with beside_a_flight(slurm) as flight:
        names = {**own_jobs(slurm), "V": str(flight.first), "W": str(flight.job), "F": str(flight.first)}
        found = got_through(slurm.target, FIXED, names)
        assert_nothing_gained(slurm, flight.first)
        assert_tells_nothing(slurm)
        all_gone(slurm)
        assert not found, "\n".join(found)
    slurm.clear()
    assert_nothing_left(slurm)


def test_a_strangers_job_neither_ends_a_preflight_nor_reads_what_it_failed_of(slurm: Slurm) -> None:
    raw.library(slurm)
    with beside_a_flight(slurm) as flight:
        names = {"F": str(flight.first)}
        mark = [("spank_job_env", "BERTH_PREFLIGHT_JOB=$F"), ("dependency", "afterany:$F")]
        carried_out(slurm, [raw.sbatch(mark)] * 2, names)
        hers = sorted(job["job_id"] for job in jobs_of(slurm, ATTACKER))[-2:]
        assert segment_of(slurm, hers[0])["preflight"] == str(flight.first), "her job names it"
        slurm.passes()
        slurm.target.run(["scancel", str(hers[1])], user=ATTACKER)
        slurm.wait_state(hers[1], {"CANCELLED"})
        # Readings two seconds apart show that a job is gone.
        slurm.passes(12)
    slurm.target.bash(f"touch /home/tests/let-{HIS_WORDS}", user="root")
    slurm.wait_state(flight.first, {"FAILED"})
    slurm.wait_state(flight.job, {"CANCELLED"})
    slurm.wait_state(hers[0], {"COMPLETED"})
    assert_tells_nothing(slurm)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 1), *(pytest.param(seed, 10, marks=pytest.mark.hard) for seed in range(2, 6))]
)
def test_nor_does_one_that_was_drawn(slurm: Slurm, seed: int, rounds: int) -> None:
    raw.library(slurm)
    with beside_a_flight(slurm) as flight:
        for number in range(rounds):
            names = {**own_jobs(slurm), "V": str(flight.first), "W": str(flight.job), "F": str(flight.first)}
            carried_out(slurm, raw.drawn(seed * 1_000 + number, 60, ("PINNED", "HELD", "PLAIN", "PACKED")), names)
            assert_nothing_gained(slurm, flight.first)
            assert_tells_nothing(slurm)
            all_gone(slurm)
    slurm.clear()
    assert_nothing_left(slurm)


WHY_OF_EACH = """
import subprocess
from policy.cli.main import main
for job in subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True, check=True).stdout.split():
    main(["why", job])
"""
"""In one process: there are hundreds, and starting Python for each takes minutes."""


def test_numbers_at_their_limits_and_raw_bytes_stop_nobody(slurm: Slurm) -> None:
    """Every number with every limit, and every text with every byte, one after the other."""
    raw.library(slurm)
    rows = [raw.sbatch([(field, str(limit))], "-H --gpus=1") for field in raw.NUMBERS for limit in raw.LIMITS[-9:]]
    rows += [raw.sbatch([(field, raw.RAW)], "-H --gpus=1") for field in (*raw.TEXTS, *raw.TRES)]
    rows += [raw.change([(field, raw.RAW)]) for field in (*raw.TEXTS, *raw.TRES)]
    with beside_a_flight(slurm) as flight:
        names = {"HELD": str(slurm.submit("-H", "-n1", body="true", user=ATTACKER))}
        for first in range(0, len(rows), 60):
            carried_out(slurm, rows[first : first + 60], names)
        own = slurm.submit("--gpus=1", body="true", user=VICTIM)
        slurm.finish(own)
        slurm.target.bash("berth queue >/dev/null", user="root")
        slurm.target.bash(f"{PYTHON} - <<'END'\n{WHY_OF_EACH}\nEND", user="root")
        assert_nothing_gained(slurm, flight.first)
        all_gone(slurm)


TRICKLE = """
import os, socket, time
held, said = [], 0
while not os.path.exists("/home/tests/no-trickle"):
    while len(held) < 600:
        one = socket.create_connection(("ctl", 6826), 2)
        one.setblocking(False)
        held.append(one)
    alive = []
    for number, one in enumerate(held):
        try:
            said += one.send(b"MUNGE:A"[number % 7:][:1])
            alive.append(one)
        except OSError:
            one.close()
    held = alive
    time.sleep(0.05)
print("trickled", said)
"""


def test_trickled_connections_keep_no_epilog_from_its_answer(slurm: Slurm) -> None:
    """600 connections of a user that say a byte now and then, and come again as soon as they are hung up on."""
    slurm.target.bash("rm -f /home/tests/no-trickle", user="root")
    flood = slurm.target.popen(f"exec timeout 300 python3 - <<'END'\n{TRICKLE}\nEND", user=ATTACKER)
    outcomes = []
    try:
        for _ in range(3):
            job = slurm.submit("--gpus=1", "-w", "n1", body="true", user=VICTIM)
            slurm.finish(job)
            outcomes += epilogs(slurm, job, 1)
        assert flood.poll() is None, "the flood was over before the jobs were"
    finally:
        slurm.target.bash("touch /home/tests/no-trickle", user="root")
        text, _ = flood.communicate(timeout=90)
    assert "trickled" in text, text
    # On a loaded machine an answer may come after the 300 ms that an Epilog waits.
    assert "done" in {outcome for _, _, outcome in outcomes}, outcomes
