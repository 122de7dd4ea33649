# SPDX-License-Identifier: Apache-2.0
"""The cluster of a replay: 64 nodes, with Berth or without it, set up for one system after the other."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from containers import cluster as clusters
from topology import files, scores
from topology.model import Machine

from .stretch import MACHINES, Stretch, table_path
from .systems import System

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build" / "replay"
KINDS = BUILD / "machines"
PROFILE = "scale"
SLURM = "24.11"
"""Which one is played where none is named."""
USER = "alice"
FOLDER = "/home/replay"
PROGRAMS = f"{FOLDER}/bin"
LEAF, POD, NODES = 4, 16, 64
HOST = "h4"
"""The container whose clock may be off: a quarter of the nodes."""


class TestbedError(Exception):
    """The cluster does not do what the replay needs; one sentence says what."""


def shell(container: str, script: str, *words: str, user: str = "root", check: bool = True) -> str:
    """Run a script in a container; what it prints."""
    done = subprocess.run(
        ["docker", "exec", "--interactive", "--user", user, container, "bash", "-s", *words],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise TestbedError(f"in {container}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def topology_conf(plugin: str) -> str:
    """Leaves of 4 nodes and pods of 16, as Slurm's tree or block plugin reads them."""
    leaves = [f"n[{first}-{first + LEAF - 1}]" for first in range(1, NODES + 1, LEAF)]
    if plugin == "block":
        blocks = [f"BlockName=leaf{number} Nodes={nodes}" for number, nodes in enumerate(leaves, 1)]
        return "\n".join([*blocks, f"BlockSizes={LEAF},{POD}"]) + "\n"
    per_pod, pods = POD // LEAF, NODES // POD
    lines = [f"SwitchName=leaf{number} Nodes={nodes}" for number, nodes in enumerate(leaves, 1)]
    lines += [
        f"SwitchName=pod{pod} Switches=leaf[{per_pod * (pod - 1) + 1}-{per_pod * pod}]" for pod in range(1, pods + 1)
    ]
    return "\n".join([*lines, f"SwitchName=spine Switches=pod[1-{pods}]"]) + "\n"


def kinds(image: str = "") -> dict[str, Machine]:
    """The simulated machines, as `berth topo discover` finds them in an image; without one, as it found them last."""
    if image:
        script = "; ".join(
            f"BERTH_FAKE_NVML=/usr/share/berth-fake/machines/{name} berth topo discover --node {name} "
            f"--output /tmp/{name}.json >/dev/null"
            for name in MACHINES
        )
        KINDS.mkdir(parents=True, exist_ok=True)
        holder = clusters.docker("run", "--detach", image, "bash", "-c", script).strip()
        try:
            clusters.docker("wait", holder)
            for name in MACHINES:
                clusters.docker("cp", f"{holder}:/tmp/{name}.json", str(KINDS))
        finally:
            clusters.docker("rm", holder)
    return files.load_directory(KINDS)


@dataclass(slots=True)
class Testbed:
    """One cluster of one Slurm version; `prepare` makes it the system that is asked for."""

    slurm: str
    topology: str = "tree"
    rebuild: bool = True
    _up: clusters.Cluster | None = None
    _off: int = 0

    @property
    def controller(self) -> str:
        """The container of slurmctld and berthd."""
        assert self._up is not None, "prepare() comes first"
        return f"{self._up.project}-ctl"

    def prepare(self, system: System, seed: int, clock_off: int = 0) -> None:
        """Bring the right cluster up, idle and configured; the clock of one of its hosts so many seconds off."""
        wanted = clusters.Cluster(self.slurm, berth=system.berth)
        if self._up != wanted:
            self.remove()
            settings = clusters.Settings(PROFILE, "berth", "")
            # The programs of plain Slurm's cluster come from the other image.
            if self.rebuild:
                clusters.build(clusters.Cluster(self.slurm, berth=True), PROFILE)
            clusters.up(wanted, settings, time_limit=240, rebuild=self.rebuild)
            self._up, self._off = wanted, 0
            self._install()
        # What an earlier run left when it failed.
        shell(self.controller, f"scancel --user={USER}")
        self._configure(system, seed)
        if self._off != clock_off:
            shell(self.controller.removesuffix("ctl") + HOST, f"/usr/share/berth-cluster/clock {clock_off}")
            self._off = clock_off
        self._wait_idle()

    def processor_seconds(self) -> float:
        """What the cluster's containers have used of the machine's processors so far."""
        read = (
            "if [ -e /sys/fs/cgroup/cpu.stat ]; then awk '/^usage_usec/ {print $2 * 1000}' /sys/fs/cgroup/cpu.stat\n"
            "else cat /sys/fs/cgroup/cpuacct/cpuacct.usage; fi"
        )
        names = [container.name for container in self._up.containers()] if self._up else []
        return sum(float(shell(name, read)) for name in names) / 1e9

    def remove(self) -> None:
        """Take the cluster down, whichever is up."""
        for berth in (True, False):
            clusters.down(clusters.Cluster(self.slurm, berth=berth))
        self._up = None

    def _install(self) -> None:
        """Programs, the stretch table and Slurm's configuration, once for each cluster."""
        image = clusters.Cluster(self.slurm, berth=True).image
        with tempfile.TemporaryDirectory() as folder:
            holder = clusters.docker("create", image).strip()
            try:
                clusters.docker("cp", f"{holder}:/usr/libexec/berth-bench", f"{folder}/bin")
            finally:
                clusters.docker("rm", holder)
            table = Stretch.load(table_path()).flat(kinds(image))
            Path(folder, "table").write_text(table, encoding="ascii")
            clusters.docker("cp", f"{folder}/.", f"{self.controller}:{FOLDER}")
        fragment = (HERE / "slurm.conf").read_text(encoding="ascii")
        shell(
            self.controller,
            f"chmod 1777 {FOLDER}\n"
            f"cat > /etc/slurm/topology.conf <<'END'\n{topology_conf(self.topology)}END\n"
            f"cat >> /etc/slurm/slurm.conf <<'END'\n{fragment}TopologyPlugin=topology/{self.topology}\n"
            "Include system.conf\nEND\n"
            "touch /etc/slurm/system.conf\n"
            "svc slurmctld restart\n"
            "for try in $(seq 100); do scontrol ping 2>/dev/null | grep -q 'is UP' && break; sleep 0.1; done\n"
            "scontrol reconfigure\n",
        )

    def _configure(self, system: System, seed: int) -> None:
        """Berth's configuration and scores; a fresh log of everything."""
        shell(
            self.controller,
            f"cat > /etc/slurm/system.conf <<'END'\n{system.slurm_conf()}END\nscontrol reconfigure\n",
        )
        if not system.berth:
            return
        with tempfile.TemporaryDirectory() as folder:
            clusters.docker("cp", f"{self.controller}:/etc/slurm/berth/topology", folder)
            machines = files.load_directory(Path(folder, "topology"))
            table = scores.encode(Stretch.load(table_path()).scores(machines, seed))
            Path(folder, "scores.csv").write_text(table, encoding="ascii")
            Path(folder, "berth.conf").write_text(system.berth_conf(), encoding="ascii")
            clusters.docker("cp", f"{folder}/scores.csv", f"{self.controller}:/etc/slurm/berth/scores.csv")
            clusters.docker("cp", f"{folder}/berth.conf", f"{self.controller}:/etc/slurm/berth.conf")
        shell(self.controller, "berthd --check-config && svc berthd restart")

    def _wait_idle(self, seconds: float = 120) -> None:
        """Until every node is idle, and berthd answers where there is one."""
        deadline = time.monotonic() + seconds
        while lack := self._lack():
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.controller} is not ready after {seconds:.0f} s: {lack}")
            time.sleep(0.5)

    def _lack(self) -> str:
        states = clusters.node_states(self.controller)
        if states != {"idle": NODES}:
            return f"the nodes are {states}"
        if self._up and self._up.berth and not clusters.berthd_answers(self.controller, NODES * clusters.GPUS_PER_NODE):
            return "berthd does not know all GPUs"
        return ""
