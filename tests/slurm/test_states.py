# SPDX-License-Identifier: Apache-2.0
"""A look at Slurm that asks for states first reads what a look at all jobs reads."""

from __future__ import annotations

import json
from pathlib import Path

from .harness import Slurm
from .test_gateways import PYTHON

SCRIPT = Path(__file__).with_name("states_script.py")
RUNNING = 'for i in $(seq 300); do [ -n "$(squeue -h -n {} -t R)" ] && break; sleep 0.1; done'
SUBMIT = "sbatch --parsable -t 5 -o /dev/null"


def test_a_look_at_states_first_reads_what_a_look_at_all_jobs_reads(slurm: Slurm) -> None:
    slurm.berthd("stop")
    sleeps = "--wrap 'exec sleep 300' >/dev/null"
    steps = [
        f"for i in 1 2 3; do {SUBMIT} -J held -p plain -H --gres=gpu:1 {sleeps}; done",
        f"{SUBMIT} -J runs -p plain --gres=gpu:1 {sleeps}",
        f"{SUBMIT} -J back -p plain --requeue --gres=gpu:1 {sleeps}",
        f"{SUBMIT} -J some -p plain --array=1-9%3 --gres=gpu:1 {sleeps}",
        "scancel -n held --state=PENDING",
        f"{RUNNING.format('back')}; scontrol requeue $(squeue -h -n back -o %A)",
        f"{RUNNING.format('some')}; scancel $(squeue -h -n some -t R -o %A | head -1)",
        f"{SUBMIT} -J late -p plain -H --gres=gpu:1 {sleeps}",
        "scontrol release $(squeue -h -n late -o %A); sleep 1",
        "scancel -n runs,back,late",
        f"{SUBMIT} -J named -p plain -H --gres=gpu:2 {sleeps}",
    ]
    program = slurm.target.bash("command -v /usr/libexec/berth/berth-slurm", user="root").out.strip()
    slurm.target.bash("sdiag -r", user="root")

    told = slurm.target.run(["python3", "-", program, *steps], user="root", stdin=SCRIPT.read_text(), timeout=180)

    lines = [json.loads(line) for line in told.out.splitlines()]
    assert [line[0] for line in lines] == steps
    assert {line[0]: line[1] for line in lines if line[1]} == {}
    calls = slurm.target.run(["sdiag"], user="root").out
    assert "REQUEST_JOB_STATE" in calls
    assert "REQUEST_JOB_INFO_SINGLE" in calls


def test_what_the_program_itself_writes_it_reads_at_once_though_no_state_changes(slurm: Slurm) -> None:
    slurm.berthd("stop")
    job = slurm.submit("-p", "plain", "-H", "--gres=gpu:1")
    program = slurm.target.bash("command -v /usr/libexec/berth/berth-slurm", user="root").out.strip()

    told = slurm.target.bash(
        f"(echo read all; echo read; echo update {job} admin_comment=told; echo read; sleep 1)"
        f" | BERTH_SLURM_STATES_FROM=1 {program}",
        user="root",
    )

    *_, last = told.out.rstrip().removesuffix('["ok"]').split('["ok"]\n')
    [record] = [json.loads(line) for line in last.splitlines() if line.startswith('["job"')]
    assert (record[1], "told" in record) == (job, True)


def test_what_nodes_have_in_use_follows_from_jobs_between_two_looks_at_them(slurm: Slurm) -> None:
    slurm.berthd("stop")
    sleeps = "--wrap 'exec sleep 300' >/dev/null"
    runs = "for i in $(seq 600); do [ $(squeue -h -n {} -t R -r | wc -l) = {} ] && break; sleep 0.1; done"
    steps = [
        f"{SUBMIT} -J one -p plain -w n1 -c 3 --mem=500 --gres=gpu:g1:1,gpu:g2:1 {sleeps}; {runs.format('one', 1)}",
        f"{SUBMIT} -J two -p plain -w n2,n3 -N2 -n2 --mem=300 --gres=gpu:2 {sleeps}; {runs.format('two', 1)}",
        f"{SUBMIT} -J many -p plain -w n4 --array=1-3 --mem=100 --gres=gpu:1 {sleeps}; {runs.format('many', 3)}",
        f"{SUBMIT} -J part -p plain -w n1 --array=1-2 --mem=100 --gres=shard:g4:30 {sleeps}; {runs.format('part', 2)}",
        f"{SUBMIT} -J seat -p plain -w n1 --mem=100 --gres=seat:g1:1 {sleeps}; {runs.format('seat', 1)}",
        "scancel $(squeue -h -n part -t R -r -o %A | head -1)",
        "scontrol suspend $(squeue -h -n one -o %A)",
        "scontrol resume $(squeue -h -n one -o %A)",
        "scontrol requeue $(squeue -h -n two -o %A); scancel -n many",
        "scancel -n one,two,part,seat",
    ]
    script = SCRIPT.with_name("between_looks_script.py").read_text()

    told = slurm.target.run([PYTHON, "-", *steps], user="root", stdin=script, timeout=300)

    lines = [json.loads(line) for line in told.out.splitlines()]
    assert [line[0] for line in lines] == steps
    assert {line[0]: line[1] for line in lines if line[1]} == {}
    assert lines[4][2] == 4
