"""Reservations at random with jobs of several users around them, and what became of the jobs."""

from __future__ import annotations

import random
import re
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.target import Target

NODES = ("n1", "n2", "n3", "n4")
USERS = ("alice", "bob", "carol")
FLAGS = ("", "", "magnetic", "flex", "magnetic,flex", "maint", "overlap")
STILL = 4.0
"""Seconds without a change after which the queue counts as settled."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One reservation or two, and jobs in the order of their submission."""

    reservations: tuple[tuple[str, ...], ...]
    typed: tuple[tuple[str, ...], ...]
    """The same reservations as a site with Berth writes them: GPUs by type."""
    jobs: tuple[tuple[str, tuple[str, ...]], ...]
    """The user and the options of each."""

    def text(self) -> str:
        """Everything in one line, to be tried by hand."""
        made = [shlex.join(one) for one in self.typed]
        return "; ".join([*made, *(f"{user}: {shlex.join(options)}" for user, options in self.jobs)])


def at_random(seed: int) -> Drawn:
    """One draw."""
    draw = random.Random(seed)
    plain, typed = [], []
    for number in range(draw.choice((1, 1, 1, 2))):
        nodes = draw.sample(NODES, draw.choice((1, 1, 2)))
        begin = draw.choice(("now", "now", "now", "now+3minutes"))
        flags = ",".join(filter(None, ("ignore_jobs", draw.choice(FLAGS), "overlap" if number else "")))
        whom = draw.choice(("users=bob", "users=bob", "users=bob,carol", "users=-alice"))
        base = (f"reservationname=r{number}", f"starttime={begin}", "duration=30", f"nodes={','.join(nodes)}", whom)
        what = draw.choice(("nodes", "cores", "gpus", "types"))
        count = draw.randint(1, 7)
        counts = {"nodes": (), "cores": (f"corecnt={count * len(nodes)}",)}.get(
            what, (f"trespernode=gres/gpu={count}",)
        )
        by_type = "trespernode=" + ",".join(f"gres/gpu:g{gpu}:1" for gpu in range(count))
        plain.append((*base, f"flags={flags}", *counts))
        typed.append((*base, f"flags={flags}", *((by_type,) if what == "types" else counts)))
    jobs = []
    for _ in range(draw.randint(3, 8)):
        user, gpus = draw.choice(USERS), draw.choice((1, 1, 2, 4, 8))
        options = [f"--gres=gpu:{gpus}", "-N1", "-t", draw.choice(("2", "20"))]
        if draw.random() < 0.3:
            options += ["-w", draw.choice(NODES)]
        if user != "alice" and draw.random() < 0.3:
            options.append("--reservation=r0")
        jobs.append((user, tuple(options)))
    return Drawn(tuple(plain), tuple(typed), tuple(jobs))


def outcome_of(target: Target, made: tuple[tuple[str, ...], ...], drawn: Drawn) -> list[str]:
    """What became of each job: Slurm's refusal, or its state and the reservation in which it runs."""
    for words in made:
        target.run(["scontrol", "create", "reservation", *words], user="root", check=False)
    # berthd reads reservations once a second.
    time.sleep(2.5)
    jobs = []
    for user, options in drawn.jobs:
        sent = target.run(
            ["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", "exec sleep 999"], user=user, check=False
        )
        jobs.append(sent.out.strip() if sent.rc == 0 else "")
    said, since = _states(target), time.monotonic()
    end = since + 40
    while time.monotonic() - since < STILL and time.monotonic() < end:
        time.sleep(0.5)
        if (now := _states(target)) != said:
            said, since = now, time.monotonic()
    return [said.get(job, "gone") if job else "refused" for job in jobs]


def _states(target: Target) -> dict[str, str]:
    out = target.run(["squeue", "-h", "-a", "-o", "%A %T %v"], user="root").out
    return {
        job: f"{state} {name if state == 'RUNNING' else ''}"
        for job, state, name in re.findall(r"(\S+) (\S+) (\S+)", out)
    }


def clear(target: Target) -> None:
    """Ends all jobs and deletes all reservations."""
    target.bash(
        """
        squeue -h -o %A | sort -u | xargs -r scancel --quiet
        for i in $(seq 200); do [ -z "$(squeue -h -o %i)" ] && break; sleep 0.1; done
        scontrol show reservation -o | grep -o '^ReservationName=[^ ]*' | xargs -r -n1 scontrol delete
        """,
        user="root",
    )
