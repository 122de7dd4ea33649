# SPDX-License-Identifier: Apache-2.0
"""Berth's plugins on a cluster whose GPUs have no types of their own (`layout = "plain"`). `make test-hard`.

Every request is run on the same cluster without Berth, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pytest

from containers.cluster import Cluster
from policy.formats import hostlist
from policy.formats import segment as segments
from tests.differential.compare import difference
from tests.differential.outcome import Request, outcome_of, prepare
from tests.slurm.conftest import cluster
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Target

from .test_models_counted import LIMITED, TYPED
from .untouched import PLAIN, lay_out

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
FOLDER = "/home/advise"
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]

BY_MODEL = LIMITED.format(
    h100="gres/gpu:h100", v100="gres/gpu:v100", tracked=r"gres\/gpu:h100,gres\/gpu:v100", licenses=""
)

REQUESTS = [
    ("sbatch", "--gres=gpu:2"),
    ("sbatch", "--gres=gpu:h100:2"),
    ("sbatch", "--gpus-per-node=4"),
    ("sbatch", "--gpus-per-node=a6000:3"),
    ("sbatch", "-N1", "--gres=gpu:2"),
    ("sbatch", "-N1", "-n4", "--gres=gpu:4"),
    ("sbatch", "-n2", "--gres=gpu:2"),
    ("sbatch", "-N2", "--gres=gpu:2"),
    ("sbatch", "-c4", "--gres=gpu:2"),
    ("sbatch", "--exclusive", "--gres=gpu:2"),
    ("sbatch", "--gres=gpu:2", "--cpus-per-gpu=3"),
    ("sbatch", "--gres=gpu:2", "--mem-per-gpu=500"),
    ("sbatch", "--gres=gpu:2", "--ntasks-per-gpu=2"),
    ("sbatch", "--gres=gpu:2", "--gres-flags=enforce-binding"),
    ("sbatch", "--gres=gpu:2", "-a0-1"),
    ("sbatch", "--gres=gpu:8"),
    ("sbatch", "--gres=gpu:9"),
    ("sbatch", "--gres=gpu:h100:1,gpu:v100:1"),
    ("sbatch", "--gres=gpu:nothing:2"),
    ("sbatch", "--gpus=2"),
    ("sbatch", "--gpus-per-task=2", "-n2"),
    ("srun", "--gres=gpu:2"),
    ("srun", "--gres=gpu:h100:2", "-n2"),
    ("salloc", "--gres=gpu:2"),
    ("#SBATCH", "--gres=gpu:v100:2"),
    ("SBATCH_", "--gres=gpu:2"),
    ("sbatch", "--gres=gpu:2", ":", "--gres=gpu:2"),
]
STEPS = [
    (("--gres=gpu:2",), ("--gres=gpu:1",)),
    (("--gres=gpu:2",), ("-n2", "--gpus-per-task=1")),
    (("--gres=gpu:2", "-n2"), ("-n2", "--gpu-bind=single:1")),
    (("--gres=gpu:h100:2", "-n1"), ("--gres=gpu:h100:1",)),
    (("--gres=gpu:2", "-N1", "-n2"), ("-n2", "--ntasks-per-gpu=1")),
    (("--gpus-per-node=2",), ("--gpus=1",)),
    (("--gres=gpu:2",), ("--gres=none",)),
]
EVERY = [Request(command, options) for command, *rest in REQUESTS for options in [tuple(rest)]]
EVERY += [Request("sbatch", job, step) for job, step in STEPS]


TWO = """
sacctmgr -iQ add qos two set MaxTRESPerUser=gres/gpu:h100=2
sacctmgr -iQ modify user bob set QosLevel+=two
for i in $(seq 100); do scontrol show assoc_mgr flags=qos | grep -q 'QOS=two(' && exit 0; sleep 0.1; done
exit 1
"""


class Pair(NamedTuple):
    plain: Target
    advise: Target

    @property
    def version(self) -> str:
        """Returns the Slurm version of both."""
        return "26.05" if "2605" in self.advise.name else "24.11"


@pytest.fixture(scope="module", params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    version = request.param
    words = ("--slurm", version, "--profile", "accounting")
    try:
        cluster("up", *words)
        cluster("up", *words, "--without-berth")
        with ThreadPoolExecutor(2) as pool:
            plain = pool.submit(lay_out, Cluster(version, berth=False), TYPED + BY_MODEL)
            advise = pool.submit(lay_out, Cluster(version, berth=True), PLAIN + TYPED + BY_MODEL)
        both = Pair(plain.result(), advise.result())
        berth = Slurm("advise", both.advise)
        berth.berthd("stop")
        berth.berthd("start")
        for target in both:
            prepare(target, FOLDER)
        yield both
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)
            cluster("down", "--slurm", version, "--without-berth")


def is_empty(target: Target) -> bool:
    return not target.run(["squeue", "-h"]).out


@pytest.fixture(autouse=True)
def quiet(pair: Pair) -> Iterator[None]:
    yield
    for target in pair:
        target.bash("squeue -h -o %A | sort -u | xargs -r scancel --quiet", user="root")
        until("an empty queue", partial(is_empty, target))


@pytest.mark.parametrize("request_", EVERY, ids=[one.text() for one in EVERY])
def test_a_job_sees_and_is_billed_the_same_as_on_plain_slurm(pair: Pair, request_: Request) -> None:
    run = partial(outcome_of, request=request_, folder=FOLDER, seconds=60)
    found = []
    # What plain Slurm does differently each time, it may do so with the plugin too.
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            plain, advise = pool.map(run, pair)
        found.append(difference(request_, plain, advise))
        if not found[-1]:
            return

    assert found == []


def held(target: Target, *options: str, user: str = "alice") -> str:
    """Submits a job that stays; its number."""
    words = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "30", "--mem=10", *options, "--wrap", "exec sleep 900"]
    return target.run(words, user=user).out.strip()


def record(target: Target, job: str) -> str:
    return target.run(["scontrol", "show", "job", "-d", "-o", job], user="root").out


def state(target: Target, job: str) -> str:
    found = re.search(r"JobState=(\S+) Reason=(\S+)", record(target, job))
    return " ".join(found.groups()) if found else ""


def in_state(target: Target, job: str, words: str) -> bool:
    return words in state(target, job)


def gpus(target: Target, job: str) -> tuple[int, ...]:
    until(f"job {job} to run", partial(in_state, target, job, "RUNNING"))
    found = re.search(r"GRES=gpu\S*?\(IDX:([\d,-]+)\)", record(target, job))
    assert found
    parts = (part.partition("-") for part in found[1].split(","))
    return tuple(gpu for first, _, last in parts for gpu in range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("form", ["--gres=gpu:2", "--gpus-per-node=2", "--gres=gpu:a6000:2"])
def test_a_pair_is_linked_where_slurm_alone_gives_one_without_a_link(pair: Pair, form: str) -> None:
    linked = {(0, 7), (1, 6), (2, 5), (3, 4)}

    alone, advised = (gpus(target, held(target, "-w", "n3", form)) for target in pair)

    assert alone not in linked
    assert advised in linked


def test_the_model_stays_in_the_request_and_limits_by_model_hold(pair: Pair) -> None:
    for target in pair:
        target.bash(TWO, user="root")
    words = ("--qos=two", "-w", "n2")
    seen = []
    for target in pair:
        jobs = [held(target, *words, f"--gres=gpu:h100:{count}", user="bob") for count in (2, 1)]
        until("the first to run", partial(in_state, target, jobs[0], "RUNNING"))
        until("the second to meet its limit", partial(in_state, target, jobs[1], "QOSMax"))
        tres = re.search(r"AllocTRES=(\S+)", record(target, jobs[0]))
        assert tres
        seen.append((tres[1], state(target, jobs[1])))

    assert seen[0] == seen[1]
    assert "gres/gpu:h100=2" in seen[0][0]
    assert "billing=" in seen[0][0]


def test_a_users_change_of_gres_works_as_on_plain_slurm(pair: Pair) -> None:
    counts = []
    for target in pair:
        job = held(target, "-H", "-w", "n3", "--gres=gpu:2")
        target.run(["scontrol", "update", f"JobId={job}", "Gres=gpu:4"])
        target.run(["scontrol", "release", job])
        counts.append(len(gpus(target, job)))

    assert counts == [4, 4]


def test_flags_are_kept_and_said_not_to_act_on_places(pair: Pair) -> None:
    answer = pair.advise.run(
        ["sbatch", "-H", "-o", "/dev/null", "--gres=gpu:2", "--locality=nvlink", "--retry=2", "--wrap", "true"]
    )

    job = answer.out.split()[-1]
    comment = re.search(r"AdminComment=(.*?\])", record(pair.advise, job))
    assert comment
    values = segments.fields(comment[1]) or {}
    assert (values["state"], values["f.retry"], values["f.locality"]) == ("passed", "2", "nvlink")
    assert "--locality: not acted on" in answer.err
    assert "TresPerJob=gres/gpu:2" in record(pair.advise, job)


def test_flags_for_a_retry_run_a_lost_job_again(pair: Pair) -> None:
    # A job that is left to Slurm has no Extra: berthd hears of its end only if a reading has shown it running.
    script = 'sleep 5; echo "RuntimeError: NCCL communicator was aborted: Connection reset by peer" >&2; exit 1'
    words = ["sbatch", "--parsable", "-o", f"{FOLDER}/%j.out", "--gres=gpu:2", "--retry=1", "--wrap", script]
    job = pair.advise.run(words).out.strip()

    until("berthd to try it again", lambda: f"JobId={job} is tried again" in log_of(pair.advise), 120)
    assert "TresPerJob=gres/gpu:2" in record(pair.advise, job)


def log_of(target: Target) -> str:
    return target.bash("svc berthd log", user="root").out


def test_without_berthd_a_job_is_as_on_plain_slurm_and_is_not_placed_later(pair: Pair) -> None:
    slurm = Slurm("advise", pair.advise)
    slurm.berthd("stop")
    try:
        job = held(pair.advise, "-w", "n3", "--gres=gpu:2")
        gpus(pair.advise, job)
        waits = held(pair.advise, "-w", "n3", "--gres=gpu:8")
    finally:
        slurm.berthd("start")
    slurm.passes(3)

    assert "TresPerNode=gres/gpu:2" in record(pair.advise, job)
    assert "TresPerNode=gres/gpu:8" in record(pair.advise, waits)


def test_berthd_counts_the_free_gpus(pair: Pair) -> None:
    job = held(pair.advise, "-w", "n3", "--gres=gpu:2")
    gpus(pair.advise, job)
    slurm = Slurm("advise", pair.advise)

    until("berthd to see it", lambda: int(slurm.berthd_status()["free_gpus"]) == 30)
    assert int(slurm.berthd_status()["gpus"]) == 32


ALIKE = r"""
sed -i -E 's/Gres=gpu:\w+:8/Gres=gpu:h100:8/' /etc/slurm/slurm.conf
sed -i -E 's/ Type=\w+ / Type=h100 /' /etc/slurm/gres.conf
printf 'SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=top Switches=leaf[1-2]\n' \
    >/etc/slurm/topology.conf
echo TopologyPlugin=topology/tree >>/etc/slurm/slurm.conf
"""
"""Nodes of one GPU model, in two leaves. The tests from here on need them, and come last."""


@pytest.fixture(scope="module")
def alike(pair: Pair) -> Target:
    lay_out(Cluster(pair.version, berth=True), ALIKE)
    slurm = Slurm("advise", pair.advise)
    slurm.berthd("stop")
    slurm.berthd("start")
    until("berthd to read the leaves", lambda: "topology.conf" in log_of(pair.advise))
    return pair.advise


def nodes_asked(target: Target, job: str) -> str:
    found = re.search(r" ReqNodeList=(\S+)", record(target, job))
    assert found
    return "" if found[1] == "(null)" else ",".join(sorted(hostlist.expand(found[1])))


def runs_on(target: Target, job: str) -> str:
    until(f"job {job} to run", partial(in_state, target, job, "RUNNING"))
    found = re.search(r" NodeList=(\S+)", record(target, job))
    assert found
    return ",".join(sorted(hostlist.expand(found[1])))


def asked_to_be(target: Target, job: str, nodes: str) -> None:
    until(f"job {job} to ask for {nodes}", lambda: nodes_asked(target, job) == nodes)


def fill(target: Target, **minutes: int) -> dict[str, str]:
    """Jobs on whole nodes, which end after so many minutes at the latest."""
    jobs = {node: held(target, "-w", node, "-t", str(time), "--gres=gpu:8") for node, time in minutes.items()}
    for job in jobs.values():
        until(f"job {job} to run", partial(in_state, target, job, "RUNNING"))
    Slurm("advise", target).passes(2)
    return jobs


GANG = ("-N2", "--gres=gpu:h100:8")


def test_a_job_gets_a_node_and_slurm_its_gpus_to_choose(alike: Target) -> None:
    job = held(alike, "--gres=gpu:h100:2")

    node = nodes_asked(alike, job)
    assert re.fullmatch(r"n\d", node)
    assert runs_on(alike, job) == node
    text = record(alike, job)
    assert "TresPerJob=gres/gpu:h100:2" in text
    assert "layout=plain" in text
    assert " Extra=" not in text
    assert " ExcNodeList=(null)" in text


def test_a_gang_waits_for_one_leaf_and_goes_to_the_other_when_that_is_free_first(alike: Target) -> None:
    before = fill(alike, n3=10, n4=30)
    gang = held(alike, *GANG, "--locality=leaf")

    assert nodes_asked(alike, gang) == "n1,n3"
    assert in_state(alike, gang, "PENDING")
    alike.run(["scancel", before["n4"]], user="root")
    assert runs_on(alike, gang) == "n2,n4"


def test_a_gang_that_may_go_anywhere_starts_at_once(alike: Target) -> None:
    fill(alike, n3=10, n4=30)
    gang = held(alike, *GANG)

    assert runs_on(alike, gang) == "n1,n2"


def test_a_gang_whose_node_is_drained_is_planned_anew(alike: Target) -> None:
    before = fill(alike, n1=10, n2=20, n3=10, n4=20)
    gang = held(alike, *GANG)
    assert nodes_asked(alike, gang) == "n1,n3"
    try:
        alike.run(["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test"], user="root")
        asked_to_be(alike, gang, "n2,n4")
    finally:
        alike.run(["scontrol", "update", "NodeName=n1", "State=RESUME"], user="root")
    for job in before.values():
        alike.run(["scancel", job], user="root")
    runs_on(alike, gang)


def test_a_users_change_takes_the_place_back(alike: Target) -> None:
    fill(alike, n1=10, n2=20, n3=10)
    gang = held(alike, *GANG)
    asked_to_be(alike, gang, "n1,n3")
    Slurm("advise", alike).passes(3)

    done = alike.run(["scontrol", "update", f"JobId={gang}", "NumNodes=1", "Gres=gpu:h100:4"])

    assert done.rc == 0
    assert nodes_asked(alike, gang) == ""
    assert runs_on(alike, gang) == "n4"


def test_a_place_outlives_berthd_and_can_be_given_back_without_it(alike: Target) -> None:
    before = fill(alike, n1=10, n2=20, n3=10, n4=20)
    slurm = Slurm("advise", alike)
    stays, back = held(alike, *GANG), held(alike, *GANG)
    asked_to_be(alike, stays, "n1,n3")
    asked_to_be(alike, back, "n2,n4")
    slurm.berthd("stop")
    try:
        alike.run(["berth", "release", back], user="root")
        assert nodes_asked(alike, back) == ""
        for node in ("n1", "n3"):
            alike.run(["scancel", before[node]], user="root")
        assert runs_on(alike, stays) == "n1,n3"
        alike.run(["scancel", stays], user="root")
        assert runs_on(alike, back) == "n1,n3"
    finally:
        slurm.berthd("start")


MIX = [
    ("--gres=gpu:2",),
    ("-N1", "--gres=gpu:h100:4"),
    ("-N2", "--gres=gpu:8"),
    ("-N2", "--gres=gpu:h100:8", "--locality=leaf@1"),
    ("--gpus=3",),
    ("-n2", "--gres=gpu:1"),
    ("-a", "0-2", "--gres=gpu:1"),
    ("-N2", "--gres=gpu:3"),
    ("-N4", "--gres=gpu:8"),
    ("-w", "n3", "--gres=gpu:2"),
]


def test_no_job_of_a_mixed_queue_is_lost_refused_or_run_twice(alike: Target) -> None:
    jobs = []
    for number in range(40):
        options = MIX[number % len(MIX)]
        words = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "1", "--mem=10", *options]
        done = alike.run([*words, "--wrap", f"exec sleep {1 + number % 4}"])
        assert done.rc == 0, done.err
        jobs.append(done.out.strip())

    until("all jobs to end", partial(is_empty, alike), 240)

    for job in jobs:
        lines = alike.run(["scontrol", "show", "job", "-o", job], user="root").out.splitlines()
        assert lines
        assert all("JobState=COMPLETED" in line and "Restarts=0" in line for line in lines), lines
