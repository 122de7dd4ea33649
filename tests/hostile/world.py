# SPDX-License-Identifier: Apache-2.0
"""An attacker with jobs of her own, a victim beside her, and what must hold whatever she did."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from policy.formats import segment
from policy.formats.hostlist import expand
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobText
from policy.slurm import disagreement
from prolog_epilog import given
from prolog_epilog.job import extra
from prolog_epilog.job import slurm as node_slurm
from tests.slurm.harness import Slurm, seen, until
from tests.slurm.nodes import let_go, nodes_of, output, said, waiting_body
from tests.slurm.target import Target

from .attacks import LINE, Attack

ATTACKER, VICTIM, NODE = "alice", "bob", "n3"
_MARK = "\x1e"
_TRES = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
_HIDES = re.compile(r"(?:^|,)[^,]+gres[:/](?:gpu|shard|seat)")
_PART = re.compile(r"gres[:/](?:shard|seat)")
_IN_SHADOW = "root:"
"""The beginning of /etc/shadow."""
_PATIENCE = 90.0
_FOREIGN_LINES = f"""
for log in /var/log/cluster/berth*.log /var/log/berth/* /home/berth-notice.log; do
    [ ! -f "$log" ] || LC_ALL=C grep -anP '^{LINE}|[\\x01-\\x08\\x0b-\\x1f\\x7f]' "$log"
done
true
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """A packed job of another user that runs all the time, and one that waits for the whole node behind it."""

    runs: int
    waits: int
    start: str
    pipe: str


def carry_out(
    target: Target, attacks: Sequence[Attack], names: dict[str, str], user: str = ATTACKER
) -> Iterator[tuple[Attack, int, str]]:
    """Run each attack in a shell of its own; its exit status, and what it printed."""
    settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in names.items())
    rows = "\n".join(f"( {one.command}\n) </dev/null 2>&1; printf '\\036%s\\036' $?" for one in attacks)
    parts = target.bash(f"cd /tmp\n{settings}{rows}\ntrue", user=user, check=False, timeout=500).out.split(_MARK)
    assert len(parts) == 2 * len(attacks) + 1, parts[-1]
    for number, one in enumerate(attacks):
        yield one, int(parts[2 * number + 1]), parts[2 * number]


def got_through(target: Target, attacks: Sequence[Attack], names: dict[str, str]) -> list[str]:
    """The attacks that were not refused as they have to be."""
    return [
        f"{one.name}: ended with {code} and said {text.strip()[-300:]!r}"
        for one, code, text in carry_out(target, attacks, names)
        if one.refusal and (code == 0 or not re.search(one.refusal, text))
    ]


def own_jobs(slurm: Slurm) -> dict[str, str]:
    """The attacker's: one with a place that may not start, one held without GPUs, one elsewhere, one that runs."""
    planned = slurm.submit("-n1", "--gpus=2", "--begin=now+1hour", body="true", user=ATTACKER)
    held = slurm.submit("-H", "-n1", body="true", user=ATTACKER)
    plain = slurm.submit("-H", "-n1", "-p", "plain", body="true", user=ATTACKER)
    packed = slurm.submit("-n1", "-w", "n4", "--gpu-share=20", body="exec sleep 600", user=ATTACKER)
    # Where jobs of hers still end on that node, only Slurm's own next pass starts it.
    slurm.wait_state(packed, {"RUNNING"}, 2 * _PATIENCE)
    names = {"PINNED": planned, "HELD": held, "PLAIN": plain, "PACKED": packed}
    # It is in berthd's list of jobs whose owner cannot change them, which is a second behind.
    words = ["scontrol", "update", f"JobId={packed}", "Extra=mine"]
    until("berthd to list the packed job", partial(_refused, slurm, words, "shares a GPU, "))
    return {name: str(job) for name, job in names.items()}


def _refused(slurm: Slurm, words: list[str], why: str) -> bool:
    return why in slurm.target.run(words, user=ATTACKER, check=False).text


@contextmanager
def beside_a_victim(slurm: Slurm) -> Iterator[Victim]:
    """Its job has to go on untouched, and the one that waits behind it has to start as soon as it ends."""
    runs = slurm.submit("-n1", "-w", NODE, "--gpu-share=30", "--gpu-mem=1G", body=waiting_body(), user=VICTIM)
    slurm.wait_state(runs, {"RUNNING"})
    assert said(slurm, runs)["mps"] is True
    waits = slurm.submit("-n1", "-w", NODE, "--gpus=8", user=VICTIM)
    before = slurm.show(runs)
    pipe = re.search(r"CUDA_MPS_PIPE_DIRECTORY=(\S+)", output(slurm, runs))
    assert pipe
    yield Victim(runs, waits, before["StartTime"], pipe[1])
    after = slurm.show(runs)
    same = ("JobState", "StartTime", "Restarts", "NodeList", "Extra", "TresPerNode", "Priority", "TimeLimit")
    assert {name: after.get(name) for name in same} == {name: before.get(name) for name in same}
    assert slurm.state(waits) == "PENDING"
    # Its GPU still has its daemon, and its program.
    assert nodes_of(slurm)[NODE].bash(
        f"pgrep -u {VICTIM} -f fake-cuda-app >/dev/null && [ -S {pipe[1]}/control ] && echo on"
    )
    let_go(slurm, runs)
    slurm.finish(runs)
    slurm.wait_state(waits, {"RUNNING", "COMPLETED"}, _PATIENCE)
    [probe] = seen(slurm.finish(waits))
    assert (probe.node, probe.gpus) == (NODE, tuple(range(8)))


def all_gone(slurm: Slurm) -> None:
    """Cancel her jobs; berthd may put one that was stopped on its node back into the queue meanwhile."""
    script = f"scancel -u {ATTACKER}; squeue -h -u {ATTACKER} | grep -q . || echo none"
    until("the attacker's jobs to be gone", lambda: "none" in slurm.target.bash(script, user="root", check=False).out)


def jobs_of(slurm: Slurm, user: str) -> list[dict[str, Any]]:
    """As Slurm has them: JSON, in which no text poses as another."""
    words = ["scontrol", "show", "jobs", "--json"]
    found: list[dict[str, Any]] = json.loads(slurm.target.run(words, user="root").out)["jobs"]
    return [job for job in found if job["user_name"] == user]


def assert_nothing_gained(slurm: Slurm, since: int) -> None:
    """No job from this number on asks for, or holds, anything that Berth has not given it."""
    # A job that its owner has changed has the place of before in its Extra until berthd has planned it anew.
    slurm.passes()
    jobs = [job for job in jobs_of(slurm, ATTACKER) if job["job_id"] >= since]
    found = [sentence for job in jobs for sentence in _wrong_with(job)]
    assert not found, "\n".join(found)


def _wrong_with(job: dict[str, Any]) -> Iterator[str]:
    states = set(job["job_state"])
    name = f"job {job['job_id']} {sorted(states)}"
    if _IN_SHADOW in job["admin_comment"]:
        yield f"{name} tells what only root may read: {job['admin_comment']}"
    asked = [job[field] for field in _TRES]
    if any(map(_HIDES.search, asked)):
        yield f"{name} asks for what nobody has looked at: {asked}"
    if job["partition"] == "plain" and any(map(_PART.search, asked)):
        yield f"{name} asks for a part of a GPU where Berth does not look: {asked}"
    if any(text.count("[berth/") > 1 for text in (job["extra"], job["admin_comment"])):
        yield f"{name} has several segments"
    try:
        values = segment.fields(job["admin_comment"]) or {}
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is wrong
        yield f"{name} has an AdminComment that nobody can read: {problem}"
        return
    # A job that ended keeps its last request, and does no harm.
    if states & {"PENDING", "RUNNING", "SUSPENDED"} and job["partition"] != "plain":
        text = JobText(job["job_id"], "", 0, job["admin_comment"], job["extra"], "", asked[0], asked[1])
        if why := disagreement.of_text(text, JobPlan(values)):
            yield f"{name}: {why}"
    if "[berth/" in job["extra"]:
        place = segment.fields(job["extra"]) or {}
        if [place.get(key) for key in ("nodes", "gpus")] != [values.get(key) for key in ("nodes", "gpus")]:
            yield f"{name} has an Extra of its own: {job['extra']}"
    if "RUNNING" in states and job["partition"] != "plain":
        yield from (f"{name}: {why}" for why in _held_on_nodes(job))


def _held_on_nodes(job: dict[str, Any]) -> Iterator[str]:
    for node, detail in zip(expand(job["nodes"]), job["gres_detail"], strict=False):
        if why := given.objection(node_slurm.read_gres(detail), extra.read(job["extra"], node)):
            yield why


def assert_logs_are_our_own(slurm: Slurm) -> None:
    """No line of a log of Berth begins with a user's text, and none holds a user's control characters."""
    for target in (slurm.target, *(node.target for node in nodes_of(slurm).values())):
        found = target.bash(_FOREIGN_LINES, user="root", check=False).out
        assert not found, found
