# SPDX-License-Identifier: Apache-2.0
"""A real run's log beside backfill on paper."""

from pathlib import Path

import pytest

from policy.simulate.jobs import TraceJob
from tests.bench.replay.outcome import Outcome, Run
from tests.bench.replay.passes import Agreement, agreement
from tests.unit.policy.simulate.slurm.test_simulate_pinned import FLEET

START = "sched/backfill: _start_job: Started JobId={} in gpu on {}"
HEAD = """\
slurmctld: _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=674
slurmctld: sched: Allocate JobId=1 NodeList=n[1-8] #CPUs=64 Partition=gpu
slurmctld: _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1 usec=674
slurmctld: _slurm_rpc_submit_batch_job: JobId=3 InitPrio=1 usec=674
slurmctld: _job_complete: JobId=1 WEXITSTATUS 0
slurmctld: _job_complete: JobId=1 done
"""


def run_of(folder: Path, starts: list[tuple[int, str]]) -> Agreement:
    """Job 1 had all eight nodes; when it ends, jobs 2 and 3 wait for eight GPUs each."""
    lines = [f"slurmctld: {START.format(*one)}" for one in starts]
    folder.joinpath("slurmctld.log").write_text(HEAD + "\n".join(lines) + "\n")
    folder.joinpath("submit.log").write_text("".join(f"r{n}\t{n}\t10{n}.0\t900\n" for n in (1, 2, 3)))
    sizes = {1: 64, 2: 8, 3: 8}
    jobs = {f"r{n}": TraceJob(f"r{n}", gpus=g, submit=0.0, work=30, limit=60, nodes=g // 8) for n, g in sizes.items()}
    outcomes = [
        Outcome(f"r{n}", g, "", 0.0, 30, 1, started=100.0 + n, gpus=tuple(range(8)), state="completed")
        for n, g in sizes.items()
    ]
    run = Run("plain", 1, "24.11", {}, tuple(outcomes), ())
    return agreement(run, folder, FLEET, jobs, {})


@pytest.mark.parametrize(
    ("starts", "found"),
    [
        ([(2, "n1"), (3, "n2")], Agreement(1, 1, 2, 2)),
        ([(2, "n1"), (3, "n5")], Agreement(1, 1, 2, 1)),
        ([(2, "n1")], Agreement(1, 0, 1, 1)),
        ([(3, "n1"), (2, "n2")], Agreement(2, 1, 2, 1)),
        ([], Agreement()),
    ],
)
def test_each_pass_is_made_again_from_what_the_real_one_found(
    starts: list[tuple[int, str]], found: Agreement, tmp_path: Path
) -> None:
    assert run_of(tmp_path, starts) == found
