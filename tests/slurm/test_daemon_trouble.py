# SPDX-License-Identifier: Apache-2.0
"""A dead, hung or lying berthd costs its help and nothing more."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from policy.formats import segment as segments

from .harness import Slurm, job_id, seen, until

pytestmark = pytest.mark.any_slurm

LIAR = Path(__file__).with_name("lying_daemon.py")
COMPLAINT = "berthd"


def submit_many(slurm: Slurm, count: int) -> float:
    """Submits trivial jobs one after another in one shell; submissions a second."""
    script = f"""
    start=$(date +%s.%N)
    for i in $(seq {count}); do
        sbatch -Q -p gpu --begin=now+1hour --gpus=1 --wrap true -o /dev/null >/dev/null 2>&1
    done
    echo "$start $(date +%s.%N)"
    """
    began, ended = slurm.target.bash(script, timeout=300).out.split()
    return count / (float(ended) - float(began))


def test_dead_daemon_jobs_run_as_with_plain_slurm(slurm: Slurm) -> None:
    slurm.berthd("stop")
    result = slurm.sbatch("--gpus=2", "-C", "a6000", "--movable")
    job = job_id(result)
    opened = seen(slurm.finish(job))[0].gpus
    plain = slurm.run_probe("--gpus=2", "-C", "a6000", "-p", "plain")

    assert opened == plain[0].gpus
    segment = segments.fields(slurm.comment(job))
    assert segment is not None
    assert segment["state"] == "passed"
    assert segment["f.movable"] == ""
    assert "--movable: not applied, berthd did not answer" in result.err


def test_dead_daemon_is_logged_once_a_minute_at_most(slurm: Slurm) -> None:
    slurm.berthd("stop")
    before = slurm.controller_log().count("does not answer")
    began = time.monotonic()
    submit_many(slurm, 12)
    minutes = (time.monotonic() - began) / 60
    after = slurm.controller_log().count("does not answer")

    assert after - before <= 1 + int(minutes) + 1
    assert after >= 1


def test_dead_daemon_model_names_still_work(slurm: Slurm) -> None:
    slurm.berthd("stop")

    probes = slurm.run_probe("--gpus=h100:2")
    assert probes[0].node == "n2"
    assert len(probes[0].gpus) == 2


def test_hung_daemon_opens_the_breaker_and_the_rate_recovers(slurm: Slurm) -> None:
    alive = submit_many(slurm, 20)
    slurm.berthd("pause")
    try:
        submit_many(slurm, 4)  # runs into the deadline and opens the breaker
        # Others use the machine too. Without a breaker each submission would wait until the deadline: a small part
        # of the rate.
        hung = max(submit_many(slurm, 20) for _ in range(3))
        result = slurm.sbatch("--gpus=1")
    finally:
        slurm.berthd("resume")

    assert hung > 0.5 * alive, f"{alive:.1f} submissions a second alive, {hung:.1f} hung"
    slurm.finish(job_id(result))

    def helped() -> bool:
        job = slurm.submit("--gpus=1")
        segment = segments.fields(slurm.comment(job))
        slurm.finish(job)
        return segment is not None and segment.get("state") == "placed"

    until("berthd to be asked again after the breaker closed", lambda: helped() or None, 30, 1.0)


@pytest.mark.parametrize(
    "lie",
    [
        "random",
        "huge",
        "empty",
        "wrong-nonce",
        "unknown-key",
        "unknown-node",
        "too-many-gpus",
        "duplicate-gpu",
        "no-gpus",
        "gpu-out-of-range",
        "bracket-in-segment",
        "control-in-message",
        "many-lines",
        "negative",
        "half",
        "close",
        "duplicate-key",
        "verb",
    ],
)
def test_lying_daemon_harms_nobody(slurm: Slurm, lie: str) -> None:
    pid = slurm.target.bash("pgrep -o slurmctld", user="root").out
    slurm.berthd("stop")
    slurm.target.run(["tee", "/tmp/lying_daemon.py"], user="root", stdin=LIAR.read_text(encoding="utf-8"))
    slurm.target.bash(
        f"""
        rm -f /run/berth/berthd.sock
        as_slurm="setpriv --reuid=slurm --regid=slurm --init-groups"
        setsid $as_slurm python3 /tmp/lying_daemon.py {lie} </dev/null >/tmp/liar.log 2>&1 &
        for i in $(seq 100); do [ -S /run/berth/berthd.sock ] && exit 0; sleep 0.05; done; exit 1
        """,
        user="root",
    )
    asked = ["grep", "-q", "asked", "/tmp/liar.log"]

    def submit_until_asked() -> int | None:
        """Submits until berthd is asked: the breaker may still be open from the lie before."""
        job = slurm.submit("--gpus=2", "-C", "v100")
        return job if slurm.target.run(asked, user="root", check=False).rc == 0 else None

    try:
        job = until("the plugin to ask the liar", submit_until_asked, every=0.4)
        record = slurm.show(job)
        output = slurm.finish(job)
    finally:
        slurm.target.bash("pkill -f lying_daemon.py", user="root", check=False)

    assert len(seen(output)[0].gpus) == 2
    assert re.fullmatch(r"gres/gpu:2", record.get("TresPerJob") or record.get("TresPerNode") or "")
    assert slurm.target.bash("pgrep -o slurmctld", user="root").out == pid


def test_one_users_long_requests_cost_nobody_else_a_place(slurm: Slurm) -> None:
    slurm.settle()
    constraint = "a|" * 2_500 + "a"
    for _ in range(4):
        # Slurm itself takes no constraint of that length; Berth was asked before it saw that.
        assert slurm.sbatch("--gpus=1", "-H", "-C", constraint, body="true", check=False, user="bob").rc != 0
    job = slurm.submit("--gpus=1", "-H", body="true")
    segment = segments.fields(slurm.comment(job))
    assert segment is not None
    assert segment["state"] == "placed"
