# SPDX-License-Identifier: Apache-2.0
"""The real side: a test cluster without Berth, where jobs and Epilogs end when a script says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.cluster import IMAGES, PREFIX
from policy.formats.errors import SlurmError
from tests.slurm.target import Container, Result
from tests.waiting import until

FOLDER = "/home/beside"

PREPARE = r"""
svc berthd stop
cd /etc/slurm
: > plugstack.conf
sed -i -e '/^JobSubmitPlugins=/d; /^CliFilterPlugins=/d; /^Prolog=/d; /^RequeueExit/d; /^Licenses=/d' \
    -e '/^SlurmctldParameters=/d; s/bf_interval=2/bf_interval=1/; s/^ReturnToService=.*/ReturnToService=0/' \
    -e 's,^Epilog=.*,Epilog=@/epilog,; s/^DefMemPerCPU=.*/DefMemPerCPU=100/' slurm.conf
cat >> slurm.conf <<'END'
RequeueExit=77
RequeueExitHold=78
Licenses=berth_h100:12,berth_l40s:2
SlurmctldParameters=enable_expedited_requeue
END
install -d -m 1777 @ @/end
cat > @/epilog <<'END'
#!/bin/bash
while [ -e @/closed.$SLURMD_NODENAME ]; do sleep 0.1; done
[ ! -e @/fail.$SLURMD_NODENAME ]
END
cat > @/job <<'END'
#!/bin/bash
# Ends with the status that a script writes for this run, and in any case when the script is over.
end=@/end/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
until [ -s $end ] || [ ! -e @/run.$RUN ]; do sleep 0.2; done
exit $(cat $end 2>/dev/null || echo 0)
END
chmod 755 @/epilog @/job
svc slurmctld restart
for i in $(seq 300); do scontrol ping | grep -q UP && break; sleep 0.1; done
scontrol reconfigure
""".replace("@", FOLDER)

CLEAN = r"""
rm -f @/closed.* @/fail.* @/run.*
scontrol update PartitionName=gpu State=UP
for id in $(squeue -h -a -o %A | sort -un); do scontrol update JobId=$id Requeue=0 2>/dev/null; done
for i in $(seq 60); do
    squeue -h -a -o %A | sort -un | xargs -r scancel --quiet
    down=$(sinfo -h -N -p gpu -t down,drain,fail -o %N | sort -u | paste -sd,)
    [ -z "$down" ] || scontrol update NodeName=$down State=RESUME
    sleep 0.5
    [ -z "$(squeue -h -a -o %i)" ] && [ -z "$(sinfo -h -N -p gpu -o %T | grep -vx idle)" ] && break
done
rm -f @/end/*
squeue -h -a; sinfo -h -N -p gpu -o '%N %T' | grep -v ' idle$'
true
""".replace("@", FOLDER)

_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


_OWN = f"{PREFIX}-beside"
"""The prefix of clusters that nobody else uses: their configuration is changed, and all their jobs are cancelled."""


@contextmanager
def own_cluster(version: str, *, keep: bool = False) -> Iterator[RealSlurm]:
    """A cluster of its own, prepared; with `keep` it stays up, and is found up the next time."""
    name = f"{_OWN}{version.replace('.', '')}-ctl"
    # One that was kept has no berthd, for which `up` would wait.
    if subprocess.run(["docker", "inspect", name], capture_output=True, check=False).returncode:
        _cluster("up", version)
    try:
        real = RealSlurm(name)
        real.prepare()
        yield real
    finally:
        if not keep:
            _cluster("down", version)


def _cluster(verb: str, version: str) -> None:
    program = Path(__file__).resolve().parents[3] / "containers" / "cluster.py"
    words = ["--no-build"] if verb == "up" and os.environ.get("BERTH_CLUSTER_IMAGES") else []
    subprocess.run(
        [sys.executable, program, verb, "--slurm", version, *words],
        check=True,
        env={**os.environ, "BERTH_CLUSTER_PREFIX": _OWN, "BERTH_CLUSTER_IMAGES": IMAGES},
    )


class RealSlurm:
    """Runs commands on it, as an admin."""

    def __init__(self, container: str) -> None:
        self.target = Container(container)
        self.run = 0

    def prepare(self) -> None:
        """Take Berth out, and make jobs and Epilogs wait for their script."""
        self.target.bash(PREPARE, user="root")
        self.clean()

    def clean(self) -> None:
        """End all that a script has left."""
        left = until("slurmctld to answer", lambda: self.target.bash(CLEAN, user="root", check=False), 60)
        if left.rc or left.out.strip():
            raise AssertionError(f"the cluster is not clean: {left.text}")

    def begin(self) -> None:
        """A new script: jobs of earlier ones end by themselves."""
        self.run = time.time_ns()
        self.bash(f"touch {FOLDER}/run.{self.run}")

    def bash(self, script: str) -> str:
        return self.target.bash(script, user="root").out

    def submit(self, options: list[str], user: str) -> int | str:
        """A batch job's number, or the sentence of refusal."""
        words = ["sbatch", "--parsable", f"--uid={user}", "-o/dev/null", "-t60", "--priority=1000", *options]
        done = self.perform([*words, f"{FOLDER}/job"], {"RUN": str(self.run)})
        return int(done.out.split(";")[0]) if done.rc == 0 else sentence(done.err)

    def end(self, job: int, restarts: int, code: int) -> None:
        """Let a run end."""
        self.bash(f"echo {code} > {FOLDER}/end/{job}.{restarts}")

    def gate(self, node: str, state: str) -> None:
        """Epilogs on a node end at once (`open`), wait (`close`), or fail at once."""
        marks = {"close": "closed", "fail": "fail"}
        made = f"touch {FOLDER}/{marks[state]}.{node}; " if state in marks else ""
        others = " ".join(f"{FOLDER}/{mark}.{node}" for of, mark in marks.items() if of != state)
        self.bash(f"{made}rm -f {others}")

    def perform(self, words: list[str], more: dict[str, str] | None = None) -> Result:
        """Run one command as root."""
        return self.target.run(words, user="root", check=False, env=_ENVIRONMENT | (more or {}))

    def gateway(self, *words: str) -> bytes:
        """As `run_command` does, for a `CommandGateway`."""
        done = self.perform(list(words))
        # scancel --ctld tells by its words alone that it did nothing.
        if done.rc or (words[0] == "scancel" and "error:" in done.err):
            said = done.err.strip().splitlines()
            raise SlurmError(f"{' '.join(words[:3])} failed: {said[-1] if said else done.rc}")
        return done.out.encode("utf-8", "surrogateescape")


def sentence(said: str) -> str:
    """Slurm's own sentence in an error, without the program's name and numbers."""
    lines = said.strip().splitlines()
    return re.sub(r" for job \d\S*$", "", re.split(r": |error:", lines[-1])[-1].strip()) if lines else "no word"
