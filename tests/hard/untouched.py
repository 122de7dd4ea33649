# SPDX-License-Identifier: Apache-2.0
"""A cluster as a site without Berth has it, and Berth's commands in a user's own folder there."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.target import Container
from tests.waiting import until

from .test_models_counted import MODELS, RESTART, TYPED

MACHINES = {"n1": "dgx-1v", "n2": "hgx-h100", "n3": "a6000-pairs", "n4": "l40s"}
BERTH = "/home/alice/berth/bin/berth"

PLAIN = """
sed -i '/^NodeName=.* Name=\\(shard\\|seat\\) /d; s/ Type=g[0-7]//' /etc/slurm/gres.conf
sed -i 's/^GresTypes=.*/GresTypes=gpu/; s/^\\(AccountingStorageTRES\\)=.*/\\1=gres\\/gpu/' /etc/slurm/slurm.conf
sed -i 's/^\\[hook\\]$/&\\nlayout = "plain"/' /etc/slurm/berth.conf
"""
"""Gives a cluster with Berth the layout that it has without, and says so in berth.conf; TYPED comes after it."""


@contextmanager
def untouched(version: str) -> Iterator[Container]:
    """Brings up a cluster with `gpu:MODEL:8` and no plugin; Berth's commands lie in alice's home."""
    one = Cluster(version, berth=False)
    try:
        cluster("build", "--slurm", version)
        cluster("up", "--slurm", version, "--without-berth")
        target = lay_out(one, TYPED)
        _copy(Cluster(version, berth=True).image, one.project)
        yield target
    finally:
        cluster("down", "--slurm", version, "--without-berth")


def lay_out(one: Cluster, script: str) -> Container:
    """Changes the configuration of a cluster by a script, with all its Slurm daemons started anew."""
    target = Container(f"{one.project}-ctl")
    nodes = [Container(f"{one.project}-{node}") for node in MODELS]
    # A node that registers with its old GPUs at a controller with the new configuration would be drained.
    for node in nodes:
        node.bash("svc slurmd stop", user="root")
    target.bash(script + RESTART, user="root")
    for node in nodes:
        node.bash("svc slurmd start", user="root")
    until("idle nodes", lambda: target.run(["sinfo", "-h", "-p", "gpu", "-o", "%D %T"]).out.strip() == "4 idle")
    return target


def _copy(image: str, project: str) -> None:
    """Lays what the image of a cluster with Berth has under /opt into alice's home, with alice as the owner."""
    container = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True).stdout.strip()
    try:
        packed = subprocess.run(["docker", "cp", f"{container}:/opt/berth", "-"], check=True, capture_output=True)
    finally:
        subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    into = ["docker", "exec", "-i", "-u", "alice", f"{project}-ctl", "tar", "x", "-C", "/home/alice"]
    subprocess.run([*into, "--no-same-owner"], input=packed.stdout, check=True, capture_output=True)
    script = f"sed -i '1s|/opt/berth|/home/alice/berth|' {BERTH}"
    Container(f"{project}-ctl").bash(script, user="alice")


def described(version: str) -> Mapping[str, str]:
    """Returns what `berth topo discover` writes for each node, by the simulated NVML of the image with Berth."""
    image = Cluster(version, berth=True).image
    found: dict[str, str] = {}
    for node, machine in MACHINES.items():
        script = (
            f"BERTH_FAKE_NVML=/usr/share/berth-fake/machines/{machine} /opt/berth/bin/berth topo discover "
            f"--node {node} --output /tmp/it.json >/dev/null && cat /tmp/it.json"
        )
        words = ["docker", "run", "--rm", "--entrypoint", "bash", image, "-c", script]
        found[node] = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return found


def give(target: Container, files: Mapping[str, str], folder: str) -> None:
    """Writes files into a folder of alice's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    target.bash(f"mkdir -p {folder}")
    words = ["docker", "exec", "-i", "-u", "alice", target.name, "tar", "x", "-C", folder]
    subprocess.run(words, input=packed.getvalue(), check=True, capture_output=True)
