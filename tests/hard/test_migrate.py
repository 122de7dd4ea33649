# SPDX-License-Identifier: Apache-2.0
"""A cluster in use goes from plain Slurm to shared GPUs and back, by the steps that `berth migrate` prints.

`make test-hard`. Every step is taken as it is printed; `systemctl` is the containers' `svc`. Jobs of several kinds run
and wait all the time: none may be lost, refused, killed or run twice, and at the end each file has the bytes of the
beginning.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.harness import until
from tests.slurm.target import Container

from .test_models_counted import MODELS, RESTART
from .untouched import lay_out

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]

PLAIN = r"""
svc berthd stop
cd /etc/slurm
BERTH=no /usr/share/berth-cluster/render
rm -f plugstack.conf berth.conf
sed -i 's/^NodeName=DEFAULT Gres=.*//; s/disable_job_shrink,//' slurm.conf
sed -i -E 's/^NodeName=(n[0-9]) Feature=(\w+)/nodename = \1 \\\n    Gres=gpu:\2:8 # by model/' slurm.conf
for pair in n1:v100 n2:h100 n3:a6000 n4:l40s; do
    sed -i -E "s/^NodeName=${pair%:*} Name=gpu /&Type=${pair#*:} /" gres.conf
done
echo MinJobAge=60 >>slurm.conf
"""
"""As on a site that names GPUs by model and nothing by feature; Berth's packages are there, and nothing names them.

Each way back from shares waits until slurmctld has forgotten the jobs that had some: in a minute or two, not in six.
"""

COUNTED = r"""
sed -i 's/^AccountingStorageTRES=.*/&,gres\/gpu:h100/' slurm.conf
sed -i 's|^PartitionName=gpu .*|& TRESBillingWeights="CPU=1,gres/gpu:h100=10"|' slurm.conf
echo AccountingStorageEnforce=limits,qos,associations >>slurm.conf
"""

COMPLETIONS = r"""
install -d -o slurm -g slurm /home/state
printf 'JobCompType=jobcomp/filetxt\nJobCompLoc=/home/state/ended\n' >>slurm.conf
"""
"""Slurm's own list of jobs that have ended, for a site without accounting."""

LIMITS = """
sacctmgr -iQ add qos three set GrpTRES=gres/gpu:h100=3
sacctmgr -iQ modify user carol set MaxTRESPerJob=gres/gpu:h100=1
sacctmgr -iQ modify user alice,bob,carol set QosLevel+=three
"""
SHOWN = "sacctmgr -nP show qos format=Name,GrpTRES; sacctmgr -nP show assoc format=Account,User,MaxTRES"
DRAINED = "sinfo -h -N -t drain,drained,draining -o '%n %E' | sort -u"
BYTES = "cd /etc/slurm; find . -maxdepth 1 -type f | sort | xargs sha256sum; stat -c '%n %a %U' *.conf"

KINDS = [
    ["--gres=gpu:h100:2"],
    ["--gpus=a6000:2", "-N1"],
    ["--gres=gpu:2", "-w", "n1"],
    ["--gpus-per-node=v100:4"],
    ["--gres=gpu:l40s:1", "-a", "0-1"],
    ["-n2"],
    ["--qos=three", "--gres=gpu:h100:1"],
]


class Site:
    """The cluster, its admin, and the jobs of its users."""

    kinds = KINDS

    def __init__(self, project: str, controller: Container) -> None:
        self.controller = controller
        self.nodes = {node: Container(f"{project}-{node}") for node in MODELS}
        self.jobs: list[str] = []

    def root(self, script: str) -> str:
        return self.controller.bash(script, user="root").out

    def submit(self, seconds: int) -> None:
        """Submits one job of each kind."""
        for words in self.kinds:
            self.submit_one(*words, seconds=seconds)

    def submit_one(self, *words: str, seconds: int = 5) -> str:
        """Submits a job; its id."""
        fixed = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "20", "--mem=100"]
        answer = self.controller.run([*fixed, *words, "--wrap", f"sleep {seconds}"])
        self.jobs.append(answer.out.strip())
        return self.jobs[-1]

    def migrate(self, *words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.root(f"berth migrate {shlex.join(words)} --json"))
        return found

    def up(self, rung: str, *nodes: str) -> None:
        """Takes the steps to a rung."""
        self.take(self.migrate("plan", rung, *nodes)["steps"])

    def back(self) -> None:
        """Takes the steps that undo the last one."""
        self.take(self.migrate("status")["steps_back"])

    def take(self, steps: object) -> None:
        assert isinstance(steps, list)
        for step in steps:
            self.take_one(step["text"], step["command"], step["hosts"])

    def take_one(self, text: str, command: str, hosts: Sequence[str]) -> None:
        if command.startswith("systemctl"):
            self.service(command, hosts)
        elif command.startswith("squeue"):
            until(text, lambda: not self.root(f"{command} -h").strip(), 420)
        elif command.startswith("berth migrate"):
            asks = not re.search(r"--yes|migrate (drain|resume) ", command)
            self.root(command + (" --yes" if asks else ""))
        elif command in ("berth doctor", "berth doctor node"):
            self.check(command)
        elif command:
            self.root(command)

    def service(self, command: str, hosts: Sequence[str]) -> None:
        name = re.findall(r"(berthd|berth-guard|slurmctld|slurmd)", command)[-1]
        action = next(one for one in ("restart", "start", "stop", "disable", "enable") if f" {one} " in command)
        action = {"disable": "stop", "enable": "start"}.get(action, action)
        if name == "slurmctld":
            self.root(RESTART)
        elif name == "berthd":
            self.root(f"svc berthd {action}")
            if action != "stop":
                until("berthd to read Slurm", self.berthd_answers)
        else:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda node: self.nodes[node].bash(f"svc {name} {action}", user="root"), hosts))
            if name == "slurmd" and action != "stop":
                until("slurmds to answer", self.all_answer, 60)

    def berthd_answers(self) -> bool:
        return self.controller.run(["berth", "status"], user="root", check=False).rc == 0

    def all_answer(self) -> bool:
        words = self.root("sinfo -h -N -o '%N %T'").split()
        return not any(state.endswith("*") or "down" in state or "unknown" in state for state in words[1::2])

    def check(self, command: str) -> None:
        answer = self.controller.run(shlex.split(command), user="root", check=False)
        wrong = [line for line in answer.out.splitlines() if line.startswith("FAIL")]
        # The test cluster has no leaves, and simulated machines are no nodes with MPS.
        assert [line for line in wrong if command == "berth doctor" and "fabric" not in line] == [], answer.out

    def jobs_ended_well(self, more: int = 0) -> None:
        """Checks by COMPLETIONS, without accounting, that each job ran to its end exactly once."""
        until("all jobs to end", lambda: not self.root("squeue -h").strip(), 420)
        count = len(self.jobs) // len(self.kinds) * (len(self.kinds) + 1) + more
        ended = self.root("cat /home/state/ended").splitlines()
        assert [line for line in ended if "JobState=COMPLETED" not in line or "ExitCode=0:0" not in line] == []
        assert len({line.split()[0] for line in ended}) == len(ended) == count

    def no_node_is_invalid(self) -> bool:
        return "inval" not in self.root("scontrol show node | grep State=").lower()


def plain_site(version: str) -> Iterator[Site]:
    """Yields a site as it is before Berth comes, on a cluster of its own."""
    one = Cluster(version, berth=True)
    words = ("--slurm", version, "--profile", "accounting")
    try:
        cluster("up", *words)
        made = Site(one.project, lay_out(one, PLAIN + COUNTED))
        made.root(LIMITS)
        yield made
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from plain_site(request.param)


def test_a_cluster_in_use_goes_up_all_steps_and_back(site: Site) -> None:
    before, limits = site.root(BYTES), site.root(SHOWN)

    site.submit(5)
    site.submit(30)
    site.up("advise")
    site.submit(5)
    site.root('scontrol update NodeName=n2,n4 State=DRAIN Reason="a bad fan"')
    site.up("exact", "n[1-2]")
    assert site.root(DRAINED).split("\n") == ["n2 a bad fan", "n4 a bad fan", ""]
    site.root("scontrol update NodeName=n2,n4 State=RESUME")
    assert site.migrate("status")["exact_nodes"] == ["n1", "n2"]
    site.submit(5)
    site.submit(30)
    site.up("exact")
    assert site.migrate("status")["exact_nodes"] == ["n1", "n2", "n3", "n4"]
    assert "license/berth_h100=3" in site.root(SHOWN)
    site.submit(5)
    site.up("sharing")
    assert site.migrate("status")["rung"] == "sharing"
    assert site.no_node_is_invalid()
    site.submit(5)
    site.submit(30)
    # They wait with a licence that goes away: one for its time, one held by its user.
    later = [site.submit_one("--gres=gpu:h100:1", word) for word in ("--begin=now+1hour", "--hold")]
    for rung in ("exact", "exact", "advise", "observe"):
        site.back()
        assert site.migrate("status")["rung"] == rung
        assert site.no_node_is_invalid()
        site.submit(5)

    assert site.root(BYTES) == before
    assert site.root(SHOWN) == limits
    reasons = [site.root(f"squeue -h -o %r -j {job}").strip() for job in later]
    assert reasons == ["BeginTime", "JobHeldUser"]
    site.root(f"scontrol update JobId={later[0]} StartTime=now; scontrol release {later[1]}")
    until("all jobs to end", lambda: not site.root("squeue -h").strip(), 420)
    lines = site.root(f"sacct -nPXDa -j {','.join(site.jobs)} -o JobID,State,Restarts,ExitCode").splitlines()
    assert [line for line in lines if not line.endswith("|COMPLETED|0|0:0")] == []
    assert len(lines) == (len(site.jobs) - len(later)) // len(KINDS) * (len(KINDS) + 1) + len(later)
