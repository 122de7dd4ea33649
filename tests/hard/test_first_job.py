# SPDX-License-Identifier: Apache-2.0
"""From packages to the first planned job, by the steps of docs/admin/install.md, on one node with simulated GPUs.

On Debian 13 with its own Slurm. `BERTH_FIRST_JOB="ubuntu:24.04=/srv/slurm bookworm=/srv/other"` adds systems with a
Slurm that was built there by hand for /opt/slurm, and lies at that path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from containers.cluster import PREFIX

from .test_packages import ROOT, Container

OWN = "trixie"
SYSTEMS = {OWN: "", **dict(one.split("=") for one in os.environ.get("BERTH_FIRST_JOB", "").split())}
FOLDERS = {OWN: "deb-debian13", "bookworm": "deb-debian12", "ubuntu:24.04": "deb-ubuntu24.04"}
# What a site has before: MUNGE, a Slurm, a driver.
LIBRARIES = "libhwloc15 libjson-c5 libnuma1 munge procps python3"
BEFORE = """
useradd --system slurm 2>/dev/null || true
useradd --create-home ada
install -d -o munge -g munge /run/munge
head -c 128 /dev/urandom >/etc/munge/munge.key
chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --init-groups munged
install -d -o slurm /var/spool/slurmctld /run/slurm
mkdir -p /etc/slurm /var/spool/slurmd /etc/berth-fake
cp /usr/share/berth-fake/machines/hgx-h100 /etc/berth-fake/machine
ldconfig
"""
PACKAGES = """
cd /dist/FOLDER
export DEBIAN_FRONTEND=noninteractive
apt-get install -y ./berth-common_*.deb ./berth-simulate_*.deb ./berth-controller_*.deb ./berth-node_*.deb ./PLUGINS
"""
CONFIGURE = r"""
cd /etc/slurm
berth topo discover
echo 'NodeName=n1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1' >/tmp/slurmd-c
berth topo export --slurm --slurmd-c /tmp/slurmd-c --only gres.conf >gres.conf
cat >slurm.conf <<'END'
ClusterName=one
SlurmctldHost=n1
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
DefMemPerCPU=1000
PrologFlags=Alloc
JobSubmitPlugins=berth
CliFilterPlugins=berth
SchedulerParameters=disable_job_shrink,batch_sched_delay=0,bf_interval=2,bf_continue
NodeName=DEFAULT Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=64000
END
berth topo export --slurm --slurmd-c /tmp/slurmd-c --only slurm.conf | grep -v '^#' >>slurm.conf
echo 'PartitionName=gpu Nodes=ALL Default=YES State=UP' >>slurm.conf
echo CgroupPlugin=disabled >cgroup.conf
echo 'optional spank_berth.so' >plugstack.conf
"""
# As the units do it.
START = """
as_slurm="setpriv --reuid=slurm --regid=slurm --init-groups"
install -d -o slurm -g slurm /run/berth /var/lib/berth
$as_slurm slurmctld -D >/tmp/slurmctld.log 2>&1 &
slurmd -D >/tmp/slurmd.log 2>&1 &
$as_slurm /opt/berth/bin/berthd >/tmp/berthd.log 2>&1 &
for try in $(seq 600); do
    [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && berth status >/dev/null 2>&1 && exit 0
    sleep 0.1
done
tail -n 20 /tmp/*.log; exit 1
"""
JOB = """
cd /home/ada
printf '#!/bin/sh\\necho cuda=$CUDA_VISIBLE_DEVICES\\n' >job
setpriv --reuid=ada --regid=ada --init-groups sbatch --wait -o out --gpus=h100:2 job >/dev/null
cat out; scontrol show job 1 | grep -o 'Extra=.*]'
"""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(3600)]


class Site(Container):
    """A computer of a site, whose commands are timed."""

    def seconds(self, script: str) -> float:
        began = time.monotonic()
        self.runs(script)
        return time.monotonic() - began


def started(system: str, by_hand: str) -> Site:
    """A computer with Slurm and without Berth; its GPUs are those of a file."""
    nvml = ROOT / "build" / "first-job" / FOLDERS[system]
    make = f"cp -r /nvml /tmp/nvml; make -C /tmp/nvml install BUILD=/tmp/made DESTDIR=/src/{nvml.relative_to(ROOT)}"
    folders = ["--volume", f"{ROOT}:/src", "--volume", f"{ROOT / 'tests' / 'fakes' / 'nvml'}:/nvml:ro"]
    tools = f"berth-packaging:{system.replace(':', '-')}"
    subprocess.run(["docker", "run", "--rm", *folders, tools, "sh", "-ec", make], check=True, capture_output=True)
    more = ["--hostname", "n1", "--volume", f"{nvml}:/driver:ro"]
    if by_hand:
        image = system if ":" in system else f"debian:{system}-slim"
        site = Site(image, *more, "--volume", f"{by_hand}:/slurm:ro")
        site.runs(
            f"apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y {LIBRARIES}; cp -a /slurm /opt/slurm"
        )
    else:
        subprocess.run([sys.executable, ROOT / "containers" / "images.py", "24.11", "plain"], check=True)
        site = Site(f"{PREFIX}-cluster:24.11-plain", *more)
    site.runs("cp -a /driver/usr/. /usr/; for k in 0 1 2 3 4 5 6 7; do mknod -m 666 /dev/nvidia$k c 195 $k; done")
    return site


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_the_steps_of_the_guide_lead_to_a_planned_job(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand, folder = SYSTEMS[system], FOLDERS[system]
    if not os.environ.get("BERTH_PACKAGES_BUILT"):
        more = ["--slurm", f"/opt/slurm={by_hand}"] if by_hand else []
        subprocess.run([sys.executable, ROOT / "packaging" / "build.py", "deb", "--in", system, *more], check=True)
    site = started(system, by_hand)
    path = "export PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH BERTH_FAKE_NVML=/etc/berth-fake/machine\n"
    try:
        site.runs(BEFORE)
        release = site.runs(f"{path}slurmctld -V").split()[1]
        words = PACKAGES.replace("FOLDER", folder).replace("PLUGINS", f"berth-slurm-plugins-{release}_*.deb")
        took = [site.seconds(path + step) for step in (words, CONFIGURE, START)]
        said = site.runs(path + JOB)
        doctor = site.tries(f"{path}berth doctor").stdout
    finally:
        site.end()
    with capsys.disabled():
        print(f"\n{system}, Slurm {release}: {' + '.join(f'{one:.0f}' for one in took)} s to the first job")
    assert said.split("\n")[:2] == ["cuda=0,1", "Extra=[berth/1 nodes=n1 gpus=0,1]"]
    assert "FAIL" not in doctor, doctor
