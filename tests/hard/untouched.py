"""A cluster as a site without Berth has it, and Berth's commands in a user's own folder there."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.target import Container, Target
from tests.waiting import until

MODELS = {"n1": "v100", "n2": "h100", "n3": "a6000", "n4": "l40s"}
MACHINES = {"n1": "dgx-1v", "n2": "hgx-h100", "n3": "a6000-pairs", "n4": "l40s"}
BERTH = "/home/alice/berth/bin/berth"

TYPED = r"""
sed -i 's/^NodeName=DEFAULT Gres=gpu:8$/NodeName=DEFAULT/
        s/^NodeName=\(n[1-4]\) Feature=\([a-z0-9]*\)$/& Gres=gpu:\2:8/' /etc/slurm/slurm.conf
for pair in n1:v100 n2:h100 n3:a6000 n4:l40s; do
    node=${pair%:*} model=${pair#*:}
    sed -i "s/^NodeName=$node Name=gpu File/NodeName=$node Name=gpu Type=$model File/" /etc/slurm/gres.conf
done
svc slurmctld restart
"""


@contextmanager
def untouched(version: str) -> Iterator[Container]:
    """Brings up a cluster with `gpu:MODEL:8` and no plugin; Berth's commands lie in alice's home."""
    one = Cluster(version, berth=False)
    try:
        cluster("build", "--slurm", version)
        cluster("up", "--slurm", version, "--without-berth")
        target = Container(f"{one.project}-ctl")
        target.bash(TYPED, user="root")
        for node in MODELS:
            Container(f"{one.project}-{node}").bash("svc slurmd restart", user="root")
        until("nodes with typed GPUs", lambda: _typed(target))
        _copy(Cluster(version, berth=True).image, one.project)
        yield target
    finally:
        cluster("down", "--slurm", version, "--without-berth")


def _typed(target: Target) -> bool:
    seen = target.run(["sinfo", "-h", "-p", "gpu", "-N", "-O", "NodeList:|,StateLong:|,Gres:|"]).out.split()
    return sorted(seen) == sorted(f"{node}|idle|gpu:{model}:8(S:0-1)|" for node, model in MODELS.items())


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
