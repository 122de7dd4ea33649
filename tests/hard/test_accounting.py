# SPDX-License-Identifier: Apache-2.0
"""What needs slurmdbd: virtual clusters that lend and take back, and reports. `make test-hard`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import PREFIX
from tests.slurm.harness import Slurm, job_id, until
from tests.slurm.target import Container

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "admin" / "slurm.md").read_text()


def lines_of_the_page(first: str) -> list[str]:
    """The block of docs/admin/slurm.md that begins so."""
    block = PAGE[PAGE.index(f"    {first}") :].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


COUNTS_ON = """
file=/home/tests/checkpoint.$SLURM_JOB_ID
done=$(cat $file 2>/dev/null || echo 0)
echo "from $done"
for step in $(seq $((done + 1)) 400); do echo $step >$file; sleep 1; done
"""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version, "--profile", "accounting"], check=True)
    try:
        yield Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


def state(slurm: Slurm, job: int) -> tuple[str, str]:
    words = ["squeue", "-h", "-j", str(job), "-o", "%T %q"]
    found = slurm.target.run(words, user="root", check=False).out.split()
    return (found[0], found[1]) if found else ("", "")


def starts(slurm: Slurm, job: int) -> list[int]:
    """From which step on each of its runs has gone on."""
    text = slurm.target.bash(f"cat {slurm.shared}/{job}.out", user="root", check=False).out
    return [int(line.removeprefix("from ")) for line in text.split("\n") if line.startswith("from ")]


def test_a_report_tells_what_really_happened(slurm: Slurm) -> None:
    since = slurm.target.run(["date", "+%FT%T"], user="root").out.strip()
    good = slurm.submit("--gpus=2", body="true")
    bad = slurm.submit("--gpus=4", body="exit 3", user="bob")
    wide = slurm.submit("-p", "plain", "-N2", "--gpus-per-node=1", body="srun -N2 true")
    again = slurm.submit("--gpus=1", "--requeue", body='sleep 2; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300')
    until("the job to run that is put back", lambda: state(slurm, again)[0] == "RUNNING" or None, 60)
    slurm.target.run(["scontrol", "requeue", str(again)], user="root")
    until("it to wait again", lambda: state(slurm, again)[0] == "PENDING" or None, 60)
    slurm.target.run(["scontrol", "update", f"JobId={again}", "StartTime=now"], user="root")
    until("all to end", lambda: not slurm.target.run(["squeue", "-h"], user="root").out.strip() or None, 120)

    def told() -> dict[str, object] | None:
        words = ["berth", "report", "--since", since, "--json", "-"]
        found: dict[str, object] = json.loads(slurm.target.run(words, user="root", timeout=120).out)
        counts = found["counts"]
        assert isinstance(counts, dict)
        return found if counts["runs"] >= 5 and not counts["open"] else None

    # slurmdbd hears of a job's end a moment later.
    found = until("all runs in the report", told, 60, every=2.0)
    assert found["counts"] == {
        **dict.fromkeys(("without_gpus", "parts", "open", "never_started"), 0),
        "runs": 5,
        "by_berth": 4,
    }, (good, bad, wide, again)
    assert (found["gpus"], found["gpus_known"]) == (32, True)
    status, places = found["status"], found["places"]
    assert isinstance(status, dict)
    assert isinstance(places, dict)
    assert {name: one["runs"] for name, one in status.items()} == {"passed": 3, "failed": 1, "requeued": 1}
    # On two nodes, as its user asked.
    assert (places["runs"]["more_nodes"], places["runs"]["more_nodes_asked"]) == (1, 1)


def test_an_operator_of_the_accounting_changes_a_pinned_job_as_root_may(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "--begin=now+1hour", body="true")
    change = ["scontrol", "update", f"JobId={job}", "Extra=[berth/1 nodes=n1 gpus=0]"]
    refused = slurm.target.run(change, user="alice", check=False)
    assert refused.rc != 0
    assert "written by Berth alone" in refused.err
    level = "sacctmgr -i add account staff; sacctmgr -i add user bob account=staff; sacctmgr -i modify user bob set"
    slurm.target.bash(f"{level} adminlevel=operator", user="root")
    try:
        # slurmctld hears of it from slurmdbd.
        until("bob to be an operator", lambda: slurm.target.run(change, user="bob", check=False).rc == 0 or None, 30)
        slurm.target.run(["scancel", str(job)], user="bob")
    finally:
        slurm.target.bash("sacctmgr -i modify user bob set adminlevel=none", user="root")


def test_a_lent_gpu_is_given_back_and_the_borrower_goes_on_from_its_checkpoint(slurm: Slurm) -> None:
    script = "\n".join(lines_of_the_page("sacctmgr -i dump")).replace("hall", "berth").replace("256", "16")
    begin, _, group = script.partition("# for each group:")
    vision = group.replace("ann,bob", "alice")
    speech = group.replace("ann,bob", "carol").replace("vision", "speech")
    slurm.target.bash(f"cd /tmp; set -e\n{begin}{vision}{speech}", user="root")
    settings = [line.partition(" ")[0] for line in lines_of_the_page("AccountingStorageEnforce")]
    conf = "\n".join(line for line in settings if not line.startswith("AccountingStorageTRES"))
    slurm.target.run(["tee", "-a", "/etc/slurm/slurm.conf"], user="root", stdin=f"\n{conf}\n")
    slurm.target.bash(
        " sed -i 's/^.berthd.$/[berthd]\\npin_ahead = false/' /etc/slurm/berth.conf;"
        " svc slurmctld restart; svc berthd restart;"
        " for i in $(seq 300); do scontrol ping | grep -q UP && berth status >/dev/null && exit 0; sleep 0.1; done;"
        " exit 1",
        user="root",
    )
    until(
        "the nodes",
        lambda: len(slurm.target.run(["sinfo", "-h", "-N", "-t", "idle", "-p", "gpu"]).out.split("\n")) > 4 or None,
        60,
    )
    slurm.settle()
    assert "vision" in slurm.target.run(["sacctmgr", "-nP", "show", "qos", "format=name"], user="root").out

    lent = ["-A", "vision", "--qos=vision,borrow", "--gpus=8", "--requeue", "--open-mode=append", "-t", "60"]
    jobs = [slurm.submit(*lent, body=COUNTS_ON) for _ in range(4)]
    until("all four nodes to be used", lambda: all(state(slurm, job)[0] == "RUNNING" for job in jobs) or None, 60)
    # Two within the share, two beyond it.
    assert sorted(state(slurm, job)[1] for job in jobs) == ["borrow", "borrow", "vision", "vision"]
    borrowers = [job for job in jobs if state(slurm, job)[1] == "borrow"]
    steps = f"cat {slurm.shared}/checkpoint.{{{','.join(map(str, borrowers))}}}"
    until("checkpoints", lambda: len(slurm.target.bash(steps, check=False).out.split()) == 2 or None, 30)

    own = [job_id(slurm.sbatch("-A", "speech", "--gpus=8", body="sleep 5", user="carol")) for _ in range(2)]
    until("the owner's jobs to start", lambda: all(state(slurm, job)[0] in {"RUNNING", ""} for job in own) or None, 60)

    # Those within their share were left alone.
    assert {state(slurm, job)[0] for job in jobs if job not in borrowers} == {"RUNNING"}
    assert {state(slurm, job)[0] for job in borrowers} <= {"PENDING", "COMPLETING"}
    until("the owner's jobs to end", lambda: not any(state(slurm, job)[0] for job in own) or None, 60)
    for job in borrowers:
        # Slurm lets a requeued job wait two minutes; nobody needs the nodes here.
        slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")
    until("the borrowers to run again", lambda: all(state(slurm, job)[0] == "RUNNING" for job in borrowers) or None, 90)
    for job in borrowers:
        until("its second start to be told", lambda job=job: len(starts(slurm, job)) == 2 or None, 30)  # type: ignore[misc]
        assert starts(slurm, job)[1] > 0
