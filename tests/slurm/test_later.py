# SPDX-License-Identifier: Apache-2.0
"""Jobs that berthd will plan later: unpinned, but in the one form that every pin can replace."""

from __future__ import annotations

import pytest

from policy.formats import segment as segments

from .harness import PROBE, Slurm, job_id, seen, until
from .scripted import later, place, scripted

NODE = "n1"
GPUS = (1, 3)
PIN = ",".join(f"gres/gpu:g{gpu}:1" for gpu in GPUS)
PROBE_SH = "/home/tests/probe.sh"

# How an array may ask for two GPUs on each of its nodes, and what each task of `srun` then sees.
ONE_NODE = {
    "--gpus=2": [GPUS],
    "--gpus-per-node=2": [GPUS],
    "--gres=gpu:2": [GPUS],
    "--gpus-per-task=1 -n2": [(1,), (3,)],
    "--tres-per-task=cpu=2,gres/gpu=1 -n2": [(1,), (3,)],
    "--cpus-per-gpu=4 --gpus=2": [GPUS],
    "--mem-per-gpu=100 --gpus=2": [GPUS],
}
TWO_NODES = {"--gpus=4 -N2": [GPUS, GPUS], "--gres=gpu:2 -N2": [GPUS, GPUS]}
CPUS = {"--tres-per-task=cpu=2,gres/gpu=1 -n2": 4, "--cpus-per-gpu=4 --gpus=2": 8}


def submit_held(slurm: Slurm, form: str, body: str) -> int:
    """A held array of three tasks; each test lets go of one."""
    options = ["-H", "-t", "5", "-o", "/home/tests/%A_%a.out", "--array=1-3", *form.split()]
    return job_id(slurm.target.run(["sbatch", *options], stdin=f"#!/bin/bash\n{body}\n"))


def output_of(slurm: Slurm, array: int, task: int) -> str:
    """The output of a task after its end."""
    show = ["squeue", "-h", "-j", f"{array}_{task}", "-o", "%T"]
    until(
        f"task {array}_{task} to end", lambda: slurm.target.run(show, check=False).out.strip() in {"", "COMPLETED"}, 60
    )
    return slurm.target.bash(f"cat /home/tests/{array}_{task}.out", user="root").out


def waiting_jobs(slurm: Slurm) -> list[str]:
    return slurm.target.run(["squeue", "-h", "-t", "PD", "-o", "%A"]).out.split()


@pytest.mark.parametrize(("nodes", "forms"), [("n1", ONE_NODE), ("n1,n2", TWO_NODES)], ids=["n1", "n1-n2"])
def test_a_task_of_an_array_can_be_pinned_alone_and_its_steps_work(
    slurm: Slurm, nodes: str, forms: dict[str, list[tuple[int, ...]]]
) -> None:
    n = str(len(nodes.split(",")))
    body = f"{PROBE}\nsrun {PROBE_SH}\necho STEP\nsrun -n1 --gpus=1 {PROBE_SH}"
    with scripted(slurm, later(int(n), 2)):
        arrays = {form: submit_held(slurm, form, body) for form in forms}
        records = {form: slurm.show(array) for form, array in arrays.items()}
        for array in arrays.values():
            change = ["scontrol", "update", f"JobId={array}_2", f"ReqNodeList={nodes}", f"TresPerNode={PIN}"]
            slurm.target.run(change, user="root")
            slurm.target.run(["scontrol", "release", f"{array}_2"], user="root")
        output = {form: output_of(slurm, array, 2) for form, array in arrays.items()}

    for form, record in records.items():
        assert (record["ReqNodeList"], record["TresPerNode"]) == ("(null)", "gres/gpu:2"), form
        assert record["NumNodes"] == f"{n}-{n}", form
        assert not {"TresPerJob", "CpusPerTres", "Extra"} & record.keys(), form
        assert record["NumCPUs"] == str(CPUS.get(form, record["NumTasks"])), form
        segment = segments.fields(record["AdminComment"])
        assert segment is not None
        assert (segment["state"], segment["n"], segment["k"]) == ("later", n, "2"), form
    for form, text in output.items():
        whole, one = text.split("STEP")
        batch, *steps = seen(whole)
        assert (batch.node, batch.gpus) == (NODE, GPUS), form
        assert sorted(step.gpus for step in steps) == forms[form], form
        assert [step.gpus for step in seen(one)] == [(GPUS[0],)], form


def test_the_tasks_that_are_not_pinned_start_as_with_plain_slurm(slurm: Slurm) -> None:
    with scripted(slurm, later(1, 2)):
        array = submit_held(slurm, "--gpus=2", f"{PROBE}\nsleep 3")
        slurm.target.run(["scontrol", "release", str(array)], user="root")
        probes = [seen(output_of(slurm, array, task))[0] for task in (1, 2, 3)]
    taken = [(probe.node, gpu) for probe in probes for gpu in probe.gpus]
    assert [len(probe.gpus) for probe in probes] == [2, 2, 2]
    assert len(set(taken)) == 6


def test_a_job_without_a_script_can_be_pinned_while_it_waits(slurm: Slurm) -> None:
    """The job's own step names GPUs without types, so the pin goes to another field than a batch job's."""
    with scripted(slurm, later(1, 2)):
        for form in ("--gpus=2", "--gres=gpu:2", "--gpus-per-task=1 -n2"):
            waiting = slurm.target.popen(f"srun -H -t 5 {form} {PROBE_SH}")
            job = until("the job to be seen", lambda: waiting_jobs(slurm))[0]
            change = ["scontrol", "update", f"JobId={job}", f"ReqNodeList={NODE}", "TresPerNode=", f"TresPerJob={PIN}"]
            slurm.target.run(change, user="root")
            slurm.target.run(["scontrol", "release", job])
            text, _ = waiting.communicate(timeout=60)
            probes = seen(text)
            assert {probe.node for probe in probes} == {NODE}, text
            assert sorted(gpu for probe in probes for gpu in probe.gpus) == list(GPUS), text


def test_an_unpinned_job_on_several_nodes_has_as_many_gpus_on_each(slurm: Slurm) -> None:
    with scripted(slurm, later(2, 2)):
        for form in ("--gpus=4", "--gpus-per-node=2", "--gres=gpu:2"):
            text = slurm.target.run(["srun", "-t", "5", "-N2", form, PROBE_SH]).out
            assert [len(probe.gpus) for probe in seen(text)] == [2, 2], text


def test_who_asks_when_it_would_start_reads_where(slurm: Slurm) -> None:
    message = "berth: n1, GPUs 1 and 3"
    told = {"message": message.replace(" ", "%20")}
    with scripted(slurm, place(NODE, "1,3", **told)):
        asks = ["--test-only", "--locality=any", "--gpus=2"]
        for command in (["sbatch", *asks], ["srun", *asks, "true"]):
            said = slurm.target.run(command, stdin="#!/bin/bash\ntrue\n")
            assert f"{command[0]}: {message}\n" in said.err
            assert f"on nodes {NODE} in partition gpu" in said.err
    with scripted(slurm, {"verb": "refuse", **told}):
        said = slurm.target.run(["sbatch", "--test-only", "--gpus=2"], stdin="#!/bin/bash\ntrue\n", check=False)
        assert said.rc == 1
        assert f"sbatch: error: {message}\n" in said.err
    assert not slurm.target.run(["squeue", "-h"]).out
