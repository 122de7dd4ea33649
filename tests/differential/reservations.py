# SPDX-License-Identifier: Apache-2.0
"""Reservations at random with jobs of several users around them, and what became of the jobs."""

from __future__ import annotations

import random
import re
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.waiting import until

if TYPE_CHECKING:
    from tests.slurm.target import Target

USERS = ("alice", "bob", "carol")
NODES = ("n1", "n2", "n3", "n4")
SOCKET = {"n1": "0123", "n2": "0123", "n3": "0257", "n4": "0123"}
"""The GPUs of one socket of each node: Slurm reserves no GPUs by type on two sockets together."""
FLAGS = ("", "", "", "magnetic", "flex", "magnetic,flex", "maint", "overlap", "daily")
STILL = 4.0
"""Seconds without a change, and without a job that starts or ends, after which the queue counts as settled."""
FULL = ("-N1", "--gres=gpu:8", "-t", "30")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One reservation or two, and jobs in the order of their submission."""

    reservations: tuple[tuple[str, ...], ...]
    typed: tuple[tuple[str, ...], ...]
    """The same reservations as a site with Berth writes them: GPUs by type."""
    jobs: tuple[tuple[str, tuple[str, ...]], ...]
    """The user and the options of each."""
    late: str
    """How the jobs wait while the reservations are made: `held`, or behind a `full` cluster; empty: made before."""

    def known_on(self, version: str) -> bool:
        """True if docs/admin/slurm.md says what may differ on this Slurm.

        One reservation names types, and another counts GPUs or is magnetic; or jobs with a place are released while
        a magnetic one has room; or, on 24.11, a job may have more GPUs in a reservation than it has types, or waits in
        a magnetic one of GPUs.
        """
        named = [":g" in str(one) for one in self.typed]
        draws = ["gres/gpu=" in str(one) or "magnetic" in str(one) for one in self.typed]
        mixed = any(of and drawn for of, drawn in zip(named, reversed(draws), strict=True)) and len(named) == 2
        return (
            mixed
            or (bool(self.late) and "magnetic" in str(self.typed))
            or (version == "24.11" and (self._outgrown or self._awaited))
        )

    @property
    def _awaited(self) -> bool:
        """True if jobs ask for a magnetic reservation of GPUs: those behind them are tested with it and without it."""
        drawn = any("magnetic" in str(one) and "gres/gpu" in str(one) for one in self.typed)
        return drawn and "--reservation" in str(self.jobs)

    @property
    def _outgrown(self) -> bool:
        """True if a job that may be in a reservation of types asks for more GPUs than these."""
        asked = [(options, int(options[0].rpartition(":")[2])) for _, options in self.jobs]
        for number, one in enumerate(map(str, self.typed)):
            inside = [most for options, most in asked if "magnetic" in one or f"--reservation=r{number}" in options]
            if ":g" in one and max(inside, default=0) > one.count(":g"):
                return True
        return False

    def text(self) -> str:
        """Everything in one line, to be tried by hand."""
        made = [shlex.join(one) for one in self.typed]
        jobs = (f"{user}: {shlex.join(options)}" for user, options in self.jobs)
        return "; ".join([*filter(None, [self.late]), *made, *jobs])


def at_random(seed: int) -> Drawn:
    """One draw: first jobs that name their node, then jobs of one size and limit that do not.

    So the number of jobs that start does not depend on the nodes that others were given.
    """
    draw = random.Random(seed)
    both = [_reservation(draw, number) for number in range(draw.choice((1, 1, 1, 2)))]
    named = [
        (draw.choice((1, 1, 2, 4, 8)), draw.choice(("2", "20")), draw.choice(NODES)) for _ in range(draw.randint(1, 4))
    ]
    free = [(draw.choice((1, 2, 4, 8)), draw.choice(("2", "20")), "")] * draw.randint(1, 5)
    jobs = []
    for gpus, limit, node in (*named, *free):
        user = draw.choice(USERS)
        options = [f"--gres=gpu:{gpus}", "-N1", "-t", limit, *(["-w", node] if node else [])]
        if node and user != "alice" and draw.random() < 0.4:
            # Behind free jobs its GPUs might be theirs.
            options[-2:] = ["-w", draw.choice(NODES)] if draw.random() < 0.2 else []
            options.append("--reservation=r0")
        jobs.append((user, tuple(options)))
    plain, typed = zip(*both, strict=True)
    # Slurm reserves no GPUs that jobs hold, and draws no job from a place that comes free at the same moment.
    empty = "gres" in str(plain) or "magnetic" in str(plain)
    late = ("held" if empty else "full") if draw.random() < 0.25 else ""
    return Drawn(plain, typed, tuple(jobs), late)


def _reservation(draw: random.Random, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    what = draw.choice(("nodes", "cores", "gpus", "types"))
    nodes = draw.sample(NODES, 1 if what == "types" else draw.choice((1, 1, 2)))
    begin = draw.choice(("now", "now", "now", "now+3minutes"))
    flags = ",".join(filter(None, ("ignore_jobs", draw.choice(FLAGS), "overlap" if number else "")))
    whom = draw.choice(("users=bob", "users=bob", "users=bob,carol", "users=-alice", "accounts=research"))
    name = f"reservationname=r{number}", f"starttime={begin}", "duration=30", f"nodes={','.join(nodes)}"
    count = draw.randint(1, 4 if what == "types" else 7)
    amount = {"nodes": "", "cores": f"corecnt={count * len(nodes)}"}.get(what, f"trespernode=gres/gpu={count}")
    types = ",".join(f"gres/gpu:g{gpu}:1" for gpu in SOCKET[nodes[0]][:count])
    base = *name, whom, f"flags={flags}"
    plain = (*base, amount) if amount else base
    return plain, (*base, f"trespernode={types}") if what == "types" else plain


def outcome_of(target: Target, made: tuple[tuple[str, ...], ...], drawn: Drawn) -> list[str]:
    """What became of each job: Slurm's refusal, or its state and the reservation in which it runs.

    A reservation that Slurm does not make is told too.
    """
    before = [_submit(target, "alice", (*FULL, "-w", node)) for node in NODES if drawn.late == "full"]
    until("the nodes to be full", lambda: [_states(target)[job] for job in before] == ["RUNNING (null)"] * len(before))
    said = [] if drawn.late else _reserve(target, made)
    hold = ("--hold",) if drawn.late == "held" else ()
    jobs = [_submit(target, user, (*options, *hold)) for user, options in drawn.jobs]
    if drawn.late:
        said = _reserve(target, made)
        end = ["scancel", *before] if before else ["scontrol", "release", *filter(None, jobs)]
        target.run(end, user="root", check=False)
    states, since = _states(target), time.monotonic()
    last = since + 180
    while time.monotonic() - since < STILL and time.monotonic() < last:
        time.sleep(0.5)
        now = _states(target)
        if now != states or not {"COMPLETING ", "CONFIGURING "}.isdisjoint(now.values()):
            states, since = now, time.monotonic()
    return [*said, *(states.get(job, "gone") if job else "refused" for job in jobs)]


def _reserve(target: Target, made: tuple[tuple[str, ...], ...]) -> list[str]:
    """Makes reservations, and gives berthd the time to read them: it does so once a second."""
    done = [target.run(["scontrol", "create", "reservation", *words], user="root", check=False) for words in made]
    time.sleep(2.5)
    return [f"not reserved: {one.err.strip()}" for one in done if one.rc]


def _submit(target: Target, user: str, options: tuple[str, ...]) -> str:
    """The job's number; empty if Slurm refuses the job."""
    words = ["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", "exec sleep 999"]
    sent = target.run(words, user=user, check=False)
    return sent.out.strip() if sent.rc == 0 else ""


def _states(target: Target) -> dict[str, str]:
    out = target.run(["squeue", "-h", "-a", "-o", "%A %T %v"], user="root").out
    return {
        job: f"{state} {name if state == 'RUNNING' else ''}"
        for job, state, name in re.findall(r"(\S+) (\S+) (\S+)", out)
    }


def clear(target: Target) -> None:
    """Ends all jobs and deletes all reservations; the nodes are idle then."""
    target.bash(
        """
        squeue -h -o %A | sort -u | xargs -r scancel --quiet
        until [ -z "$(squeue -h -o %i)" ]; do sleep 0.1; done
        scontrol show reservation -o | grep -o '^ReservationName=[^ ]*' | xargs -r -n1 scontrol delete
        until [ "$(sinfo -h -N -o %T | sort -u)" = idle ]; do sleep 0.1; done
        """,
        user="root",
    )
