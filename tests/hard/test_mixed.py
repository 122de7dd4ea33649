# SPDX-License-Identifier: Apache-2.0
"""A cluster on its way: n1 and n2 have one GRES type for each GPU, n3 and n4 list theirs by model. `make test-hard`."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator

import pytest

from containers.cluster import Cluster
from policy.formats import segment as segments
from tests.slurm.conftest import cluster
from tests.slurm.harness import PROBE, Slurm, job_id, seen, until

from .untouched import lay_out

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]

MODELS = {"n1": "v100", "n2": "h100", "n3": "v100", "n4": "h100"}
JOBS = 48

HALF = r"""
cd /etc/slurm
for pair in n3:v100 n4:h100; do
    node=${pair%:*} model=${pair#*:}
    sed -i "s/^NodeName=$node .*/NodeName=$node Feature=$model Gres=gpu:$model:8/" slurm.conf
    sed -i -E "/^NodeName=$node /s/Type=g[0-7]/Type=$model/" gres.conf
done
sed -i 's/^NodeName=n\[1-4\] /NodeName=n[1-2] /' gres.conf
"""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    one = Cluster(request.param, berth=True)
    try:
        cluster("up", "--slurm", request.param)
        made = Slurm(request.param, lay_out(one, HALF))
        made.berthd("stop")
        made.berthd("start")
        yield made
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", request.param)


def test_doctor_finds_nothing_wrong(slurm: Slurm) -> None:
    answer = slurm.target.run(["berth", "doctor"], user="root", check=False)

    step = next(line for line in answer.out.splitlines() if "rollout:" in line)
    assert "2 of 4 GPU nodes have one GRES type for each GPU; on n3, n4 Slurm alone chooses" in step
    assert [line for line in answer.out.splitlines() if line.startswith("FAIL") and "fabric" not in line] == []


def test_jobs_by_model_run_on_both_kinds_of_nodes(slurm: Slurm) -> None:
    draw = random.Random(1)
    asked: dict[int, tuple[str, int]] = {}
    for _ in range(JOBS):
        model, count = draw.choice(("v100", "h100")), draw.choice((1, 2, 2, 4, 8))
        form = draw.choice(("--gres=gpu:{}:{}", "--gpus={}:{}", "--gpus-per-node={}:{}")).format(model, count)
        words = [form, "-N1", "-n1", "--mem=100"]
        job = job_id(slurm.sbatch(*words, body=f"{PROBE}\nsleep {draw.choice((1, 2, 3))}"))
        asked[job] = model, count
    until("all jobs to end", lambda: not slurm.target.run(["squeue", "-h"]).out.strip(), 600)

    nodes: dict[str, int] = dict.fromkeys(MODELS, 0)
    for job, (model, count) in asked.items():
        (probe,) = seen(slurm.finish(job))
        assert (MODELS[probe.node], len(probe.gpus)) == (model, count), job
        nodes[probe.node] += 1
    assert min(nodes.values()) > 0, nodes


def test_a_job_starts_at_once_on_a_plain_node_while_the_others_are_full(slurm: Slurm) -> None:
    holder = slurm.submit("--gres=gpu:h100:8", "-w", "n2", body="exec sleep 300")
    slurm.wait_state(holder, {"RUNNING"})
    slurm.passes()

    (probe,) = slurm.run_probe("--gres=gpu:h100:2")

    assert (probe.node, len(probe.gpus)) == ("n4", 2)
    slurm.target.run(["scancel", str(holder)], user="root")


def test_a_waiting_job_with_a_place_goes_to_a_plain_node_that_comes_free_first(slurm: Slurm) -> None:
    holders = {
        node: slurm.submit("--gres=gpu:h100:8", "-w", node, "-t", "9", body="exec sleep 500") for node in ("n2", "n4")
    }
    for holder in holders.values():
        slurm.wait_state(holder, {"RUNNING"})
    slurm.passes()
    job = slurm.submit("--gres=gpu:h100:2", body="exec sleep 5")
    values = segments.fields(slurm.comment(job)) or {}
    slurm.target.run(["scancel", str(holders["n4"])], user="root")

    slurm.wait_state(job, {"RUNNING", "COMPLETED"})

    assert values["state"] in {"passed", "later"}
    assert re.search(r"NodeList=n4", slurm.target.run(["scontrol", "show", "job", "-o", str(job)]).out)
    slurm.target.run(["scancel", str(holders["n2"])], user="root")
