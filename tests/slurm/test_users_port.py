# SPDX-License-Identifier: Apache-2.0
"""Users ask berthd from a host where nothing of Slurm can be used, and see what Slurm would show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from .harness import Slurm, until
from .nodes import berth_conf, nodes_of, wake
from .target import Result, Target

pytestmark = pytest.mark.any_slurm

# A login node without Slurm's commands, and with a berth.conf of its own.
CONF = "/tmp/berth-users.conf"
ELSEWHERE = {"PATH": "/usr/local/bin:/nowhere", "BERTH_CONF": CONF, "SLURM_CONF": "/nowhere/slurm.conf"}


USERS = '[users]\nhosts = "ctl"'
FLOOD = """
from pathlib import Path
from policy.cli import ask
from policy.site.config import load
config, said = load(Path("{conf}")), []
for _ in range(100):
    try:
        ask.question(config, "why job=1")
    except Exception as problem:
        said.append(str(problem))
print(*said, sep="\\n")
"""


@contextmanager
def private_jobs(slurm: Slurm) -> Iterator[None]:
    """Sets PrivateData=jobs: Slurm shows users only their own jobs."""
    slurm.target.bash(
        "cp /etc/slurm/slurm.conf /tmp/slurm.conf.kept\n"
        "echo PrivateData=jobs >>/etc/slurm/slurm.conf; scontrol reconfigure",
        user="root",
    )
    try:
        yield
    finally:
        slurm.target.bash("cp /tmp/slurm.conf.kept /etc/slurm/slurm.conf; scontrol reconfigure", user="root")


@pytest.fixture
def login(slurm: Slurm) -> Target:
    """A host of the cluster that berthd does not run on."""
    if not slurm.can_reconfigure:
        pytest.skip("only the Dockerized cluster's configuration is ours to change")
    # With auth/slurm it is slurmd that vouches for users of its host.
    wake(slurm, "n1")
    found = nodes_of(slurm)["n1"].target
    found.run(["tee", CONF], user="root", stdin=USERS)
    return found


def ask(login: Target, *words: str, user: str) -> Result:
    return login.run(["/opt/berth/bin/berth", *words], user=user, env=ELSEWHERE, check=False)


def listening(login: Target) -> None:
    until("berthd to answer users", lambda: ask(login, "status", user="alice").rc == 0 or None)


def test_users_ask_berthd_where_slurm_cannot_be_asked(slurm: Slurm, login: Target) -> None:
    with berth_conf(slurm, USERS):
        listening(login)
        job = slurm.submit("--gpus=2", "-C", "v100", body="exec sleep 60")
        slurm.wait_state(job, {"RUNNING"})

        own, others = (ask(login, "why", "-v", str(job), user=user) for user in ("alice", "bob"))
        status = ask(login, "status", user="bob")
        unknown = ask(login, "why", "4000000", user="alice")

    assert own.out == others.out
    assert re.search(rf"^job +{job} \(running\)$", own.out, re.MULTILINE), own.text
    assert "GB/s" in own.out
    assert re.search(r"^gpus +32$", status.out, re.MULTILINE), status.text
    assert unknown.rc == 1
    assert "job 4000000 is not known to Slurm" in unknown.err


def test_private_jobs_stay_private(slurm: Slurm, login: Target) -> None:
    with private_jobs(slurm), berth_conf(slurm, USERS):
        listening(login)
        job = slurm.submit("--gpus=2", "-C", "v100", body="exec sleep 60")
        slurm.wait_state(job, {"RUNNING"})

        told = {user: ask(login, "why", "-v", str(job), user=user) for user in ("alice", "bob", "root", "slurm")}
        show = ["scontrol", "show", "job", str(job)]
        shown = {user: slurm.target.run(show, user=user, check=False).rc == 0 for user in told}

    assert {user: one.rc == 0 for user, one in told.items()} == shown
    assert shown == {"alice": True, "bob": False, "root": True, "slurm": True}
    assert f"job {job} is not known to Slurm" in told["bob"].err


def test_users_who_ask_without_end_keep_no_job_from_its_place(slurm: Slurm, login: Target) -> None:
    with berth_conf(slurm, USERS):
        listening(login)
        script = FLOOD.format(conf=CONF)
        floods = [login.popen(f"/opt/berth/bin/python - <<'END'\n{script}\nEND\n", user="bob") for _ in range(4)]
        jobs = [slurm.submit("--gpus=1", body="exec sleep 60") for _ in range(8)]
        said = [flood.communicate(timeout=120)[0] for flood in floods]
        told = ask(login, "why", "-v", str(jobs[0]), user="alice")

    assert all("too many questions of one user" in one for one in said), said
    assert told.rc == 0, told.text
    assert all("state=passed" not in slurm.comment(job) for job in jobs)


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_map_and_the_queue_obey_private_data(slurm: Slurm, login: Target) -> None:
    with private_jobs(slurm), berth_conf(slurm, USERS):
        listening(login)
        job = slurm.submit("--gpus=2", "-C", "v100", body="exec sleep 60")
        slurm.wait_state(job, {"RUNNING"})

        def seen() -> str | None:
            told = ask(login, "nodes", "-h", "-o", "gpus", user="alice")
            # While Slurm's last picture has it waiting, its number stands in parentheses.
            return told.out if told.rc == 0 and str(job) in told.out.split() else None

        own = until("the overview to show that the job runs", seen)
        others = ask(login, "nodes", "-h", "-o", "gpus", user="bob").out
        queues = {
            user: ask(login, "queue", "-h", "-o", "jobid,st,gpus", user=user) for user in ("alice", "bob", "root")
        }

    assert own.replace(str(job), "*").split() == others.split()
    assert own.split().count(str(job)) == 2
    assert {user: rows_of(told.out) for user, told in queues.items()} == {
        "alice": [[str(job), "R", "2"]],
        "bob": [],
        "root": [[str(job), "R", "2"]],
    }


@pytest.mark.parametrize("is_private", [False, True])
def test_lists_are_open_by_default_where_those_of_slurm_are(slurm: Slurm, login: Target, *, is_private: bool) -> None:
    # berthd begins anew, so that it knows of PrivateData at once.
    with private_jobs(slurm) if is_private else nullcontext(), berth_conf(slurm, ""):
        job = slurm.submit("--gpus=1", body="exec sleep 60")
        slurm.wait_state(job, {"RUNNING"})

        for host in (slurm.target, login):

            def seen(host: Target = host) -> str | None:
                told = host.run(["/opt/berth/bin/berth", "queue", "-h", "-o", "jobid"], user="alice", check=False)
                return told.out if str(job) in told.out.split() else None

            until("the overview to have alice's job", seen)
            theirs = host.run(["/opt/berth/bin/berth", "queue", "-h", "-o", "jobid"], user="bob").out.split()
            slurms = host.run(["squeue", "-h", "-o", "%i"], user="bob").out.split()
            assert (str(job) in theirs) == (str(job) in slurms) == (not is_private)


def test_root_has_the_map_on_the_controller_without_the_port(slurm: Slurm) -> None:
    if not slurm.can_reconfigure:
        pytest.skip("only the Dockerized cluster's configuration is ours to change")
    with berth_conf(slurm, '[users]\nhosts = ""'):
        job = slurm.submit("--gpus=1", body="exec sleep 60")
        slurm.wait_state(job, {"RUNNING"})

        def seen() -> str | None:
            told = slurm.target.run(["berth", "nodes"], user="root", check=False)
            return told.out if str(job) in told.out else None

        assert until("the overview to have the job", seen).startswith("NODE")
        told = slurm.target.run(["berth", "nodes"], user="alice", check=False)
        assert told.rc == 1
        assert "Root and Slurm's user read it" in told.err
