# SPDX-License-Identifier: Apache-2.0
"""A configless cluster with a backup controller goes up all steps of `berth migrate` and back. `make test-hard`.

Nodes have no slurm.conf: their slurmds fetch the files, and sackd does on the login node. Each controller has files of
its own, and so do nodes and login node for berth.conf. Steps are taken as they are printed, `Copy` by hand; jobs run
and wait all the time. At the end each host has the bytes of the beginning.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from containers.cluster import Cluster
from tests.real.packages import SACKDS, unpacked
from tests.slurm.conftest import cluster
from tests.slurm.harness import until
from tests.slurm.target import Container

from .test_migrate import COMPLETIONS, KINDS, PLAIN, VERSIONS, Site

pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]

BACKUP = "ctl2"
LOGIN = "login"
CONFIGLESS = (
    PLAIN
    + COMPLETIONS
    + r"""
sed -i 's/^SlurmctldHost=ctl$/&\nSlurmctldHost=ctl2/; s|^StateSaveLocation=.*|StateSaveLocation=/home/state|' slurm.conf
echo SlurmctldParameters=enable_configless >>slurm.conf
"""
)
SECOND = r"""
. /usr/share/berth-cluster/lib.sh
install -d "$STATE" "$LOGS"
install -d -o slurm -g slurm /run/slurm /run/berth
find /etc/slurm -mindepth 1 -delete
cp -a /shared/. /etc/slurm
touch "$STATE/berthd.stopped"
start_munge
keep slurmctld setpriv --reuid=slurm --regid=slurm --init-groups slurmctld -D &
keep berthd setpriv --reuid=slurm --regid=slurm --init-groups berthd &
wait
"""
"""Runs on the backup controller, which has its own /etc/slurm and shares the state with the first one."""
FETCHES = r"""
. /usr/share/berth-cluster/lib.sh
install -d "$STATE" "$LOGS"
install -d -o slurm -g slurm /run/slurm
find /etc/slurm -mindepth 1 -delete
MUNGE_KEY=/shared/.munge.key
start_munge
keep sackd setpriv --reuid=slurm --regid=slurm --init-groups /usr/sbin/sackd --conf-server ctl,ctl2 -D
"""
"""Runs on the login node: it has no slurm.conf either, and sackd (Debian's) fetches the files."""
OWN_FILES = r"""
svc slurmd stop
install -d /srv/etc
mount --bind /srv/etc /etc/slurm
printf '#!/bin/sh\nexec /usr/sbin/slurmd --conf-server ctl,ctl2 "$@"\n' >/usr/local/sbin/slurmd
chmod 755 /usr/local/sbin/slurmd
"""
FILES = "cd /etc/slurm; find . -type f ! -name '.*' -printf '%p %m %u ' -exec sha256sum {} \\; | sort"
FETCHED = "cat /run/slurm/conf/*.conf"


class ConfiglessSite(Site):
    """A site on which each host has files of its own, and nodes fetch Slurm's."""

    kinds = KINDS[:-1]

    def __init__(self, project: str) -> None:
        super().__init__(project, Container(f"{project}-ctl"))
        self.backup = Container(f"{project}-{BACKUP}")
        self.login = Container(f"{project}-{LOGIN}")
        self.hosts = {"ctl": self.controller, BACKUP: self.backup, LOGIN: self.login, **self.nodes}
        self.copied: list[str] = []

    def all_files(self) -> dict[str, str]:
        return {name: host.bash(FILES, user="root").out for name, host in self.hosts.items()}

    def copy(self) -> None:
        """Gives the backup controller all files that were changed, and nodes and login node berth.conf."""
        for path in self.copied:
            there = self.controller.bash(f"base64 {path}", user="root", check=False)
            script = f"base64 -d >{path}" if there.rc == 0 else f"rm -f {path}"
            text = base64.b64encode(base64.b64decode(there.out)).decode()
            for name, host in self.hosts.items():
                if name == BACKUP or (name != "ctl" and path.endswith("berth.conf")):
                    host.bash(f"echo '{text}' | {script}", user="root")

    def take(self, steps: object) -> None:
        assert isinstance(steps, list)
        for step in steps:
            if step["text"].startswith("Copy "):
                self.copy()
            elif step["command"].startswith("berth migrate undo"):
                changes = self.migrate("status")["changes"]
                assert isinstance(changes, list)
                self.copied = changes[-1]["files"]
                self.take_one(step["text"], step["command"], step["hosts"])
            elif step["command"].startswith("berth migrate apply"):
                self.take_one(step["text"], step["command"], step["hosts"])
                changes = self.migrate("status")["changes"]
                assert isinstance(changes, list)
                self.copied = changes[-1]["files"]
            else:
                self.take_one(step["text"], step["command"], step["hosts"])

    def service(self, command: str, hosts: Sequence[str]) -> None:
        if "slurmctld" in command:
            assert list(hosts) == [BACKUP, "ctl"]
            for name in hosts:
                self.hosts[name].bash("svc slurmctld restart", user="root")
                until(f"slurmctld on {name}", partial(self.is_up, name))
        elif command.endswith("berthd"):
            assert list(hosts) == ["ctl", BACKUP]
            action = "stop" if " stop " in command else "restart"
            for name in hosts:
                self.hosts[name].bash(f"svc berthd {action}", user="root")
            if action != "stop":
                until("berthd to read Slurm", self.berthd_answers)
        else:
            super().service(command, hosts)

    def is_up(self, name: str) -> bool:
        return f" at {name} is UP" in self.controller.run(["scontrol", "ping"], check=False).out

    def check(self, command: str) -> None:
        if command == "berth doctor":
            super().check(command)
            return
        for host in self.nodes.values():
            lines = host.run(["berth", "doctor", "node"], user="root", check=False).out.splitlines()
            about = ("berth.conf", "Slurm", "Prolog", "Epilog", "PrologFlags", "LaunchParameters")
            assert [line for line in lines if line.startswith(tuple(f"FAIL  {name}:" for name in about))] == []


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest) -> Iterator[ConfiglessSite]:
    version = request.param
    one = Cluster(version, berth=True)
    sackd = unpacked(SACKDS[version])
    assert isinstance(sackd, Path), sackd
    try:
        cluster("up", "--slurm", version)
        made = ConfiglessSite(one.project)
        for node in made.nodes.values():
            node.bash(OWN_FILES, user="root")
        made.root("svc slurmctld stop" + CONFIGLESS)
        starts(one, BACKUP, SECOND)
        starts(one, LOGIN, FETCHES, "--volume", f"{sackd / 'usr/sbin/sackd'}:/usr/sbin/sackd:ro")
        made.root("svc slurmctld start")
        for name in ("ctl", BACKUP):
            until(f"slurmctld on {name}", partial(made.is_up, name))
        for node in made.nodes.values():
            node.bash("svc slurmd start", user="root")
        until("the login node's files", lambda: made.login.run(["sinfo"], check=False).rc == 0)
        until("idle nodes", lambda: made.root("sinfo -h -p gpu -o '%D %T'").strip() == "4 idle")
        yield made
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)


def starts(one: Cluster, host: str, script: str, *words: str) -> None:
    """Starts a container beside those of the cluster."""
    words += ("--label", f"com.docker.compose.project={one.project}", "--hostname", host, "--network-alias", host)
    words += ("--network", f"{one.project}_cluster", "--volume", f"{one.project}_configuration:/shared:ro")
    words += ("--volume", f"{one.project}_homes:/home", "--entrypoint", "bash")
    command = ["docker", "run", "--detach", "--name", f"{one.project}-{host}", *words, one.image, "-c", script]
    subprocess.run(command, check=True, capture_output=True)


def test_a_configless_cluster_with_a_backup_controller_goes_up_all_steps_and_back(site: ConfiglessSite) -> None:
    before = site.all_files()

    assert before["n1"] == ""
    site.submit(20)
    site.up("advise")
    for name, node in site.nodes.items():
        # A slurmd that has the files a moment later is told to fetch them by what was printed.
        for words in ("optional spank_berth.so", "CliFilterPlugins=berth"):
            until(f"{words} on {name}", partial(fetched, node, words))
    from_the_login_node(site, "--retry=auto", "--gpus=2")
    site.submit(5)
    site.up("exact", "n[1-2]")
    site.submit(20)
    site.up("exact")
    until("the exact layout on n4", partial(fetched, site.nodes["n4"], "Type=g7"))
    from_the_login_node(site, "--gpus=2", "-N1")
    fails_over(site)
    site.up("sharing")
    assert site.migrate("status")["rung"] == "sharing"
    assert site.no_node_is_invalid()
    shares_a_gpu(site)
    from_the_login_node(site, "--gpus=1", "--gpu-share=30", "--gpu-mem=1G")
    site.submit(20)
    for rung in ("exact", "exact", "advise", "observe"):
        site.back()
        assert site.migrate("status")["rung"] == rung
        assert site.no_node_is_invalid()
        site.submit(5)

    from_the_login_node(site, "--gpus=2")
    refused = until(
        "the flags to be gone", lambda: site.login.run(["sbatch", "--retry=auto", "--wrap", "true"], check=False).err
    )
    assert "unrecognized option" in refused
    assert site.all_files() == before
    site.jobs_ended_well(more=6)


def fetched(node: Container, words: str) -> bool:
    return words in node.bash(FETCHED, user="root").out


def from_the_login_node(site: ConfiglessSite, *words: str) -> None:
    """A user of the login node has a job run with these options, by the files that sackd has fetched."""
    submit = ["sbatch", "--parsable", "-o", "/dev/null", "-t", "20", "--mem=100", *words, "--wrap", "sleep 2"]
    job = until(f"the login node to take {words}", lambda: site.login.run(submit, check=False).out.strip() or None)
    until("its end", lambda: "JobState=COMPLETED" in site.root(f"scontrol show job {job}"), 120)


def fails_over(site: ConfiglessSite) -> None:
    """The backup takes over with the layout in force, places a job, and gives the cluster back."""
    site.root("svc slurmctld stop")
    site.backup.bash("scontrol takeover", user="root", check=False)
    words = ["sbatch", "--parsable", "-o", "/dev/null", "--gpus=2", "-N1", "--wrap", "sleep 5"]
    job = until("the backup to take a job", lambda: site.backup.run(words, check=False).out.strip() or None)
    until("its place", lambda: "state=placed" in site.backup.run(["scontrol", "show", "job", "-d", job]).out)
    assert "gpu:g" in site.backup.run(["scontrol", "show", "job", "-d", job]).out
    site.root("svc slurmctld start")
    until("slurmctld on ctl", lambda: site.is_up("ctl"))
    until("the job to end", lambda: "COMPLETED" in site.root(f"scontrol show job {job}"))


def shares_a_gpu(site: ConfiglessSite) -> None:
    """A share is held on a node that fetched its files, and Slurm knows it when the node loses its shards."""
    words = ["--gpus=1", "--gpu-share=30", "--gpu-mem=1G", "-n1", "-w", "n3", "--wrap", "sleep 5"]
    job = site.controller.run(["sbatch", "--parsable", "-o", "/dev/null", *words]).out.strip()
    until("the share to run and end", lambda: "JobState=COMPLETED" in site.root(f"scontrol show job {job}"), 120)
    assert "shard:g" in site.root(f"scontrol show job -d {job}")
