# SPDX-License-Identifier: Apache-2.0
"""The Ansible role takes a cluster in use from plain Slurm to the exact layout and back. `make test-hard`.

Each host has its own copy of the configuration, which the role keeps alike (`berth_rung_shared=false`). The containers
have no systemd: `systemctl` is a script that calls their own tool. BERTH_ANSIBLE names another ansible-playbook.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.harness import until
from tests.slurm.target import Container

from .test_migrate import COMPLETIONS, KINDS, PLAIN, VERSIONS, Site
from .test_migrate_configless import FILES
from .test_models_counted import MODELS
from .untouched import lay_out

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = os.environ.get("BERTH_ANSIBLE") or str(ROOT / "build" / "ansible" / "bin" / "ansible-playbook")
pytestmark = [
    pytest.mark.hard,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not shutil.which(ANSIBLE), reason=f"{ANSIBLE} is not there: make build/ansible/.installed"),
]

OWN_FILES = """
svc slurmd stop
cp -a /etc/slurm /srv/etc
mount --bind /srv/etc /etc/slurm
svc slurmd start
"""
SYSTEMCTL = r"""
cat >/usr/local/bin/systemctl <<'END'
#!/bin/bash
set -e
case "$1 $2" in
"enable --now") svc "$3" start ;;
"disable --now") svc "$3" stop ;;
"enable "*) ;;
*) svc "$2" "$1" ;;
esac
case "$1 $2" in
"restart slurmctld") for i in $(seq 300); do scontrol ping | grep -q UP && exit 0; sleep 0.1; done; exit 1 ;;
"restart berthd") for i in $(seq 300); do berth status >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1 ;;
esac
END
chmod 755 /usr/local/bin/systemctl
"""


class AnsibleSite(Site):
    """A site with copied configuration, of which Ansible takes care."""

    kinds = KINDS[:-1]

    def __init__(self, project: str, controller: Container, folder: Path) -> None:
        super().__init__(project, controller)
        self.inventory = folder / "hosts"
        nodes = "\n".join(f"{name} ansible_host={node.name}" for name, node in self.nodes.items())
        self.inventory.write_text(
            f"[slurm_controllers]\nctl ansible_host={controller.name}\n[slurm_nodes]\n{nodes}\n"
            "[all:vars]\nansible_connection=container\nansible_become=false\n"
            "ansible_python_interpreter=/opt/berth/bin/python\n"
        )

    def play(self, *words: str) -> str:
        """Runs the playbook; returns what it said."""
        settings = {"ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "tests" / "hard" / "ansible"), "ANSIBLE_NOCOLOR": "1"}
        # One `docker exec` for each task in place of five: on a busy machine they are most of the time.
        settings |= {"ANSIBLE_PIPELINING": "1"}
        extra = [word for each in ("berth_rung_shared=false", "berth_rung_delay=2", *words) for word in ("-e", each)]
        done = subprocess.run(
            [ANSIBLE, "-i", self.inventory, ROOT / "deploy" / "ansible" / "rung.yml", *extra],
            check=False, capture_output=True, text=True, env={**os.environ, **settings}, timeout=3000,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    def all_files(self) -> dict[str, str]:
        hosts = {"ctl": self.controller, **self.nodes}
        return {name: host.bash(FILES, user="root").out for name, host in hosts.items()}


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnsibleSite]:
    version = request.param
    one = Cluster(version, berth=True)
    try:
        cluster("up", "--slurm", version)
        made = AnsibleSite(one.project, lay_out(one, PLAIN + COMPLETIONS), tmp_path_factory.mktemp("ansible"))
        for host in (made.controller, *made.nodes.values()):
            host.bash(SYSTEMCTL, user="root")
        for name in MODELS:
            made.nodes[name].bash(OWN_FILES, user="root")
        until("idle nodes", lambda: made.root("sinfo -h -p gpu -o '%D %T'").strip() == "4 idle")
        yield made
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)


def test_the_role_goes_to_the_exact_layout_and_back_under_load(site: AnsibleSite) -> None:
    before = site.all_files()

    for words in (["berth_rung=advise"], ["berth_rung=exact", "berth_nodes=n[1-2]"], ["berth_rung=exact"]):
        site.submit(15)
        site.play(*words)
        assert len(set(map(str.strip, site.all_files().values()))) == 1, "each host has the same files"
    status = site.migrate("status")
    assert (status["rung"], status["exact_nodes"]) == ("exact", ["n1", "n2", "n3", "n4"])
    assert site.no_node_is_invalid()
    site.submit(15)
    site.play("berth_rung=observe")

    assert site.all_files() == before
    assert site.migrate("status")["rung"] == "observe"
    site.jobs_ended_well()
