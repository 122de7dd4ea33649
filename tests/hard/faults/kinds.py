"""Does the faults, and undoes them: each to one daemon, one disk or one network of the test cluster."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.slurm.harness import Slurm
from tests.slurm.nodes import NAMES, nodes_of

RUN = "/run/berth"
_START_MUNGED = (
    "while pgrep -x munged >/dev/null; do sleep 0.1; done; rm -f /run/munge/munge.socket.2*;"
    " setpriv --reuid=munge --regid=munge --init-groups munged"
)
_PLUGIN = "$(find /usr/lib /usr/lib64 -name job_submit_berth.so 2>/dev/null | head -1)"
_SECOND = "/tmp/second-berthd"
_START_SECOND = (
    f'mkdir -p {_SECOND}; chown slurm: {_SECOND}; sed \'s#^.hook.#[hook]\\npinned_file = "{_SECOND}/pinned"#;'
    f" /^.notice./,$d' /etc/slurm/berth.conf >{_SECOND}/berth.conf; setsid setpriv --reuid=slurm --regid=slurm"
    f" --init-groups berthd --config {_SECOND}/berth.conf --socket {_SECOND}/sock >{_SECOND}/log 2>&1 &"
    f" echo $! >{_SECOND}/pid; sleep 1"
)
_OTHER_PLUGIN = (
    f"cp {_PLUGIN} /tmp/plugin.kept; cp {_PLUGIN} /tmp/plugin.other; sed -i 's#berth/1 submit#berth/0 submit#g'"
    f" /tmp/plugin.other; mv /tmp/plugin.other {_PLUGIN}; svc slurmctld restart"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: what does it, what undoes it, and where; `node` is empty for the controller."""

    name: str
    node: str
    do: Callable[[], None]
    undo: Callable[[], None]


class Faults:
    """All kinds, in an order that the seed shuffles anew each time all have been done."""

    def __init__(self, slurm: Slurm, dice: random.Random, *, accounting: bool) -> None:
        self._slurm, self._dice, self._nodes = slurm, dice, nodes_of(slurm)
        self._deck: list[str] = []
        self._accounting = accounting

    @property
    def names(self) -> list[str]:
        """All kinds by name, in one order."""
        return [*_CONTROLLER, *_NODE, "network of a node cut", *(["slurmdbd killed"] if self._accounting else [])]

    def draw(self) -> Fault:
        """The next one, on a node that is drawn too."""
        if not self._deck:
            self._deck = self.names
            self._dice.shuffle(self._deck)
        name = self._deck.pop()
        if name == "slurmdbd killed":
            return Fault(
                name, "", lambda: _docker("exec", f"{self._project()}-dbd", "svc", "slurmdbd", "kill"), _nothing
            )
        if name in _CONTROLLER:
            do, undo = _CONTROLLER[name]
            return Fault(name, "", lambda: self._on_controller(do), lambda: self._on_controller(undo))
        node = self._dice.choice(NAMES)
        if name in _NODE:
            do, undo = _NODE[name]
            return Fault(name, node, lambda: self._on_node(node, do), lambda: self._on_node(node, undo))
        return Fault(name, node, lambda: self._cut(node), lambda: self._join(node))

    def prepare(self) -> None:
        """Give each node a small disk of its own for what Berth keeps there, to be filled."""
        for node in self._nodes.values():
            node.bash(
                f"svc berth-guard stop; mkdir -p {RUN}; mount -t tmpfs -o size=8m,mode=755 tmpfs {RUN};"
                " svc berth-guard start"
            )

    def put_back(self) -> None:
        """Take the small disks away."""
        for node in self._nodes.values():
            node.bash(f"svc berth-guard stop; umount -l {RUN}; svc berth-guard start")

    def _on_controller(self, script: str) -> None:
        self._slurm.target.bash(script, user="root", check=False, timeout=120)

    def _on_node(self, node: str, script: str) -> None:
        self._nodes[node].bash(script, check=False, timeout=120)

    def _project(self) -> str:
        return self._slurm.target.name.removesuffix("-ctl")

    def _cut(self, node: str) -> None:
        _docker("network", "disconnect", f"{self._project()}_cluster", f"{self._project()}-{node}")

    def _join(self, node: str) -> None:
        words = ("--alias", node, f"{self._project()}_cluster", f"{self._project()}-{node}")
        _docker("network", "connect", *words)


def _nothing() -> None:
    """Undoes what ends by itself: the daemon is started again."""


def _docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(words[:2])}: {done.stderr.strip()}")


_CONTROLLER: Mapping[str, tuple[str, str]] = {
    "berthd killed": ("svc berthd kill", ""),
    "berthd stopped in its steps": ("svc berthd pause", "svc berthd resume"),
    "planner killed": ("pkill -KILL -f policy.daemon.passes.planning", ""),
    "planner stopped in its steps": (
        "pkill -STOP -f policy.daemon.passes.planning",
        "pkill -CONT -f policy.daemon.passes.planning",
    ),
    "gateway program killed": ("pkill -KILL -x berth-slurm", ""),
    "slurmctld killed": ("svc slurmctld kill", ""),
    "slurmctld stopped in its steps": ("svc slurmctld pause", "svc slurmctld resume"),
    "munge of the controller gone": ("pkill -KILL -x munged", _START_MUNGED),
    "folder of berthd read-only": (
        f"chown root:root {RUN}; chmod 555 {RUN}",
        f"chown slurm:slurm {RUN}; chmod 755 {RUN}",
    ),
    "two berthds": (_START_SECOND, f"kill $(cat {_SECOND}/pid); sleep 1; rm -rf {_SECOND}"),
    "plugin of another version": (_OTHER_PLUGIN, f"mv /tmp/plugin.kept {_PLUGIN}; svc slurmctld restart"),
    "upgrade of Berth, this release over itself": (
        "svc berthd stop; setpriv --reuid=slurm --regid=slurm --init-groups berth release --all --for-now",
        "svc berthd start",
    ),
    "an admin reconfigures": ("scontrol reconfigure", ""),
}

_NODE: Mapping[str, tuple[str, str]] = {
    "guard killed": ("svc berth-guard kill", ""),
    "guard stopped in its steps": ("svc berth-guard pause", "svc berth-guard resume"),
    "MPS killed": ("pkill -KILL -f nvidia-cuda-mps", ""),
    "slurmd killed": ("svc slurmd kill", ""),
    "slurmd stopped in its steps": ("svc slurmd pause", "svc slurmd resume"),
    "munge of a node gone": ("pkill -KILL -x munged", _START_MUNGED),
    "disk of a node full": (f"dd if=/dev/zero of={RUN}/filler bs=64k 2>/dev/null; true", f"rm -f {RUN}/filler"),
    "disk of a node read-only": (f"mount -o remount,ro {RUN}", f"mount -o remount,rw {RUN}"),
    "a job's step daemon killed": ("pkill -KILL -o slurmstepd", ""),
}
