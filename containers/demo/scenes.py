# SPDX-License-Identifier: Apache-2.0
"""The scenes after that of links: each shows a job under Slurm alone, the same one with Berth, and the cost.

Each line begins with the part that did what it says: Slurm, berthd, berth-guard, the simulated driver, or the job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from containers.demo.site import SLOW, Site

LOST = "RuntimeError: NCCL communicator was aborted: Connection reset by peer"
# Fails on its first run as if a peer was lost, and trains on the next.
FAILS_ONCE = f"""if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
    echo "{LOST}" >&2; exit 1
fi
echo "trained on $SLURMD_NODENAME"; exec sleep 300"""
LEAVES = {"n1": "leaf1", "n3": "leaf1", "n2": "leaf2", "n4": "leaf2"}
_GAVE = {"Slurm alone": "gave", "berthd": "pinned, and Slurm gave,"}
# The shares of a GPU's time that MPS gave to the job, as the job's own program reads them.
USES = "echo SHARE $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; exec fake-cuda-app alloc=64 hold=300"


def slow_gpu(site: Site) -> None:
    """A job of one GPU on a node whose first GPU is slow."""
    site.scene("A slow GPU avoided: --gpus=1 on n2, whose first GPU is slow by a made-up score table")
    gpus = {}
    for who, partition in (("Slurm alone", "plain"), ("berthd", "gpu")):
        job = site.submit(f"-p {partition} -C h100 --gpus=1")
        site.runs(job)
        gpus[who] = site.gpu(job)
        site.read(f"scancel {job}")
    for who, gpu in gpus.items():
        step = SLOW if gpu == site.slow else 1.0
        site.tell(who, f"{_GAVE[who]} GPU {gpu}: a step takes {step:.2f} of the usual time")
    site.tell("cost", "none: another GPU was free, and both jobs started at once")


def gang(site: Site) -> None:
    """A job of two nodes on two leaves of two nodes each."""
    site.scene("A gang in one leaf: -N2 --gpus-per-node=4; leaf1 has n1 and n3, leaf2 has n2 and n4")
    for who, partition in (("Slurm alone", "plain"), ("berthd", "gpu")):
        job = site.submit(f"-p {partition} -N2 --gpus-per-node=4 -t 5")
        site.runs(job)
        names = site.read(f"scontrol show hostnames {site.show(job)['NodeList']}").split()
        leaves = sorted({LEAVES[name] for name in names})
        across = "" if len(leaves) == 1 else ", and all of its traffic between nodes crosses the spine"
        site.tell(who, f"{_GAVE[who]} {','.join(names)}: {' and '.join(leaves)}{across}")
        site.read(f"scancel {job}")
    site.tell("cost", "none: both jobs started at once. Slurm has its default here, no topology plugin")


def shares(site: Site) -> None:
    """Two halves of one GPU, and a guest beside the owner of a whole node."""
    site.scene("A share held and a guest beside its owner, on n4")
    two = "-w n4 --gpus=1 -t 10"
    plain = [site.submit(f"-p plain {two}") for _ in range(2)]
    site.runs(*plain)
    site.tell(
        "Slurm alone",
        f"gave two jobs that need half a GPU each two GPUs, {site.gpu(plain[0])} and {site.gpu(plain[1])}",
    )
    site.read(f"scancel {' '.join(map(str, plain))}")
    site.settle()
    halves = [site.submit("-w n4 --gpu-share=50 -t 10", USES) for _ in range(2)]
    site.runs(*halves)
    share = site.until("MPS to say the share", lambda: re.search(r"SHARE (\d+)", site.output(halves[1])))
    site.tell(
        "berthd", f"pinned both on GPU {site.segment(halves[0])['gpus']}, and Slurm's books hold 50 % of it for each"
    )
    site.tell("simulated MPS", f"let each job have {share[1]} % of the GPU's threads, set by the node's Prolog")
    site.read(f"scancel {' '.join(map(str, halves))}")
    site.clear()
    owner = site.submit("-w n4 --gpus=8 --gpu-tier=guaranteed --gpu-mem=1G -t 10")
    site.runs(owner)
    guest = site.submit("-w n4 --gpus=1 --gpu-tier=opportunistic -t 10")
    began = time.monotonic()
    site.runs(guest)
    took = time.monotonic() - began
    waits = site.submit("-p plain -w n4 --gpus=1")
    reason = site.until("Slurm's reason", lambda: site.show(waits)["Reason"].replace("None", "") or None)
    site.tell("Slurm alone", f"lets a job of one GPU wait for the owner of all eight: {reason}")
    site.tell("berthd", f"gave the guest the seat beside GPU {site.segment(guest)['gpus']}; it ran after {took:.1f} s")
    began = time.monotonic()
    site.read(f"scancel {owner} {waits}")
    late = site.submit("-w n4 --gpus=8 -t 10")
    site.runs(late)
    site.tell(
        "cost",
        f"an owner that wants no guest started {time.monotonic() - began:.1f} s after it was asked for: the guest",
    )
    site.tell("", "had to leave first. What a guest costs a running owner no simulated driver can show: docs/results")


def wait(site: Site) -> None:
    """A job that waits though GPUs are free, because they are kept for a wider one."""
    site.scene("A wait explained: alice's --gpus=4 for two hours, while 8 GPUs of n1 are free")
    held = [site.submit(f"-w n{number} --gpus=8 -t {10 * number}", user="carol") for number in (2, 3, 4)]
    site.runs(*held)
    site.settle()
    wide = site.submit("-N2 --gpus-per-node=8 -t 60", user="bob")
    site.settle()
    job = site.submit("--gpus=4 -t 120")
    text = site.until("the wait to be explained", lambda: _explained(site, job), 40)
    site.tell("Slurm alone", f"squeue says of job {job}: ({site.read(f'squeue -h -o %r -j {job}').strip()})")
    for line in text.splitlines():
        site.tell("berthd", line)
    site.tell("cost", f"nothing is moved: the order is Slurm's, which would keep n1 for job {wide} too")


def _explained(site: Site, job: int) -> str | None:
    text = site.read(f"berth why {job}", "alice").strip()
    return text if re.search(r"^kept ", text, re.MULTILINE) else None


def retry(site: Site) -> None:
    """A job that loses a peer on its first run."""
    site.scene("A failed job run again elsewhere: its first run ends as if the network between GPUs was lost")
    plain, job = site.submit("-p plain --gpus=1", FAILS_ONCE), site.submit("--gpus=1 --retry=1", FAILS_ONCE)
    first = site.until("berthd to pause the job", lambda: _paused(site, job))
    pause = int(first["again"]) - time.time()
    site.tell("Slurm alone", f"leaves job {plain} as it ended: {site.show(plain)['JobState']}")
    site.tell("berth-epilog", f"read the log's end on {first['tried'].rpartition(':')[2]}: {first['fail']}")
    site.tell(
        "berthd", f"requeued job {job} for another node, and would let it wait {pause:.0f} s for the trouble to pass"
    )
    site.tell("alice", f"cuts that pause short for this demo: scontrol update JobId={job} StartTime=now")
    site.read(f"scontrol update JobId={job} StartTime=now")
    text = site.until("the second run", lambda: re.search("trained on .*", site.output(job)), 120)[0]
    site.tell("the job", text)
    site.tell("cost", "the pause, and the first run, which saved nothing")


def _paused(site: Site, job: int) -> dict[str, str] | None:
    values = site.segment(job)
    failed_on = values.get("tried", "").rpartition(":")[2]
    return values if "again" in values and values.get("nodes") not in {None, failed_on} else None


SCENES: tuple[Callable[[Site], None], ...] = (slow_gpu, gang, shares, wait, retry)
