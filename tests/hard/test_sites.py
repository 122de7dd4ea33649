# SPDX-License-Identifier: Apache-2.0
"""The same requests on plain Slurm and with Berth, on sites that have set up Slurm in other ways. `make test-hard`."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.differential.compare import difference
from tests.differential.outcome import Outcome, Request, outcome_of, prepare
from tests.slurm.harness import until
from tests.slurm.target import Container, Target

from .test_differential import FOLDER, Pair, pair

__all__ = ["pair"]

SLURM, GRES = "/etc/slurm/slurm.conf", "/etc/slurm/gres.conf"
HALF_THE_CORES = (
    f"sed -i 's/CoresPerSocket=8 ThreadsPerCore=1/CoresPerSocket=4 ThreadsPerCore=2/' {SLURM};"
    f" sed -i 's/Cores=0-7/Cores=0-3/; s/Cores=8-15/Cores=4-7/' {GRES}"
)
SITES = {
    "DefMemPerGPU": f"sed -i 's/^DefMemPerCPU=.*/DefMemPerGPU=700/' {SLURM}",
    "DefCpuPerGPU": f"sed -i 's/^PartitionName=gpu .*/& DefCpuPerGPU=2/' {SLURM}",
    "MaxCPUsPerNode": f"sed -i 's/^PartitionName=gpu .*/& MaxCPUsPerNode=8/' {SLURM}",
    "CR_CPU_Memory": f"sed -i 's/CR_Core_Memory/CR_CPU_Memory/' {SLURM}",
    "CR_Core": f"sed -i 's/CR_Core_Memory/CR_Core/' {SLURM}",
    "CR_LLN": f"sed -i 's/CR_Core_Memory/CR_Core_Memory,CR_LLN/' {SLURM}",
    "CR_ONE_TASK_PER_CORE": f"sed -i 's/CR_Core_Memory/CR_Core_Memory,CR_ONE_TASK_PER_CORE/' {SLURM}; {HALF_THE_CORES}",
    "two threads": HALF_THE_CORES,
    "RestrictedCoresPerGPU": f"sed -i 's/^NodeName=DEFAULT Sockets=.*/& RestrictedCoresPerGPU=1/' {SLURM}",
    "nvidia_gpu_env": f"sed -i 's/ Name=gpu .*/& Flags=nvidia_gpu_env/' {GRES}",
    "env_uuid": f"sed -i 's/ Name=gpu .*/& Flags=env_uuid/' {GRES}",
    "no_gpu_env": f"sed -i 's/ Name=gpu .*/& Flags=no_gpu_env/' {GRES}",
    "topology/tree": (
        f"echo TopologyPlugin=topology/tree >>{SLURM}; printf 'SwitchName=a Nodes=n[1-2]\\nSwitchName=b Nodes=n[3-4]\\n"
        "SwitchName=c Switches=a,b\\n' >/etc/slurm/topology.conf"
    ),
}
BACK = f"cp -n {SLURM} {GRES} /root/; cp /root/slurm.conf /root/gres.conf /etc/slurm/; rm -f /etc/slurm/topology.conf"

REQUESTS = """
srun -n1 --gpus=1
srun -n2 --gpus=2
sbatch -n2 --gpus=2 --cpus-per-gpu=2
srun -n1 --gres=gpu:2 --cpus-per-gpu=3
srun -n1 --gpus=8
srun -n4 --gpus-per-task=1
sbatch -N2 -n2 --gpus-per-node=2
sbatch -N2 -n4 --gpus-per-node=2 -c2
srun -n1 -c4 --gpus=1
srun -n1 --gpus=2 --mem-per-gpu=300
srun -n1 --gpus=1 --mem=400
srun -n1 --gpus=1 --mem-per-cpu=200 -c2
srun -n16 --gpus=2
srun -n5 --gpus=2
srun -n3 -c3 --gpus=1
srun --gpus=1 --exclusive
sbatch --gpus=1 --exclusive
srun -n2 --gpus=2 --hint=nomultithread
srun -n2 --gpus=2 --threads-per-core=1
srun -n2 --gpus=2 --ntasks-per-core=1
srun -n2 --gpus-per-socket=1 --sockets-per-node=2
srun -n2 -N2 --gpus=2 --switches=1
srun -n1 -c12 --gpus=1
srun -n1 -c16 --gpus=8
srun -n2
srun -n1 -c2 --gres=none
salloc -n2 --gpus=2 -c2
sbatch --array=1-2 --gpus=1
""".strip().splitlines()


def set_up(target: Container, change: str, *, berth: bool) -> None:
    """Make it such a site."""
    target.bash(f"{BACK}; {change}; svc slurmctld restart", user="root")
    for number in range(1, 5):
        Container(f"{target.name.removesuffix('ctl')}n{number}").run(["svc", "slurmd", "restart"], user="root")
    if berth:
        target.run(["svc", "berthd", "restart"], user="root")
    idle = ["sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D"]
    until("all nodes to be idle", lambda: target.run(idle, user="root", check=False).out.strip() == "4" or None, 60)
    if berth:
        status = ["berth", "status", "--json"]
        until(
            "all GPUs to be free",
            lambda: '"free_gpus": 32' in target.run(status, user="root", check=False).out or None,
            60,
        )


def run(target: Target, request: Request) -> Outcome:
    return outcome_of(target, request, folder=FOLDER, seconds=20)


@pytest.mark.hard
@pytest.mark.timeout(3_600)
def test_on_each_site_requests_become_the_same(pair: Pair) -> None:
    for target in pair:
        prepare(target, FOLDER)
    found = {}
    for name, change in SITES.items():
        for target, berth in zip(pair, (False, True), strict=True):
            assert isinstance(target, Container)
            set_up(target, change, berth=berth)
        for text in REQUESTS:
            command, *options = shlex.split(text)
            with ThreadPoolExecutor(2) as pool:
                plain, other = pool.map(partial(run, request=Request(command, tuple(options))), pair)
            if why := difference(Request(command, tuple(options)), plain, other):
                found[name, text] = why
                print(f"{name}: {text}: {why}\n  plain {plain.text()}\n  berth {other.text()}", flush=True)
    assert found == {}
