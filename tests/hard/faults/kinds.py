# SPDX-License-Identifier: Apache-2.0
"""Does the faults, and undoes them: each to one daemon, one disk or one network of the test cluster."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.hard.faults.site import NODE_DISK as RUN
from tests.hard.faults.site import FaultySite

STATE = "/srv/state"
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
_IN_CONTROL = "grep -c 'Running as primary controller' /var/log/cluster/slurmctld.log"
TAKEN_OVER_WITHIN = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: what does it, what undoes it, and where; `node` is empty for the controller."""

    name: str
    node: str
    do: Callable[[], None]
    undo: Callable[[], None]

    @property
    def takes_over(self) -> bool:
        """Tells whether the backup controller takes control."""
        return self.name in _TAKES_OVER

    @property
    def hangs_slurmctld(self) -> bool:
        """Tells whether commands would wait for slurmctld, and the fault would last longer than it should.

        One that stands still for longer than SlurmctldTimeout and then goes on meets a backup that has taken control:
        then both decide, which Slurm does not know how to mend.
        """
        return self.name == "slurmctld stopped in its steps"

    @property
    def loses_state(self) -> bool:
        """Tells whether slurmctld loses what it had not saved."""
        return self.name in _LOSES_STATE


class Faults:
    """All kinds, in an order that the seed shuffles anew each time all have been done."""

    def __init__(self, site: FaultySite, dice: random.Random) -> None:
        self._site, self._dice = site, dice
        self._deck: list[str] = []

    @property
    def names(self) -> list[str]:
        """All kinds by name, in one order."""
        names = [*_CONTROLLER, *_NODE, "network of a node cut"]
        names += _NODE_OF_BERTH if self._site.holds_jobs else ()
        names += (*_TAKES_OVER, *_BACKUP) if self._site.backup else ()
        return names + (["slurmdbd killed"] if self._site.profile == "accounting" else [])

    def draw(self) -> Fault:
        """The next one, on a node that is drawn too."""
        if not self._deck:
            self._deck = self.names
            self._dice.shuffle(self._deck)
        name = self._deck.pop()
        if name == "slurmdbd killed":
            return Fault(
                name, "", lambda: _docker("exec", f"{self._site.project}-dbd", "svc", "slurmdbd", "kill"), _nothing
            )
        if name in _TAKES_OVER:
            return Fault(name, "", lambda: self._hand_over(name), self._take_back)
        if name in _CONTROLLER:
            do, undo = _CONTROLLER[name]
            return Fault(name, "", lambda: self._on("ctl", do), lambda: self._on("ctl", undo))
        if name in _BACKUP:
            do, undo = _BACKUP[name]
            return Fault(name, "", lambda: self._on("ctl2", do), lambda: self._on("ctl2", undo))
        node = self._dice.choice(self._site.nodes)
        host = self._site.host_of(node)
        if name == "network of a node cut":
            return Fault(name, host.name, lambda: self._cut(host.name), lambda: self._join(host.name))
        do, undo = ({**_NODE, **_NODE_OF_BERTH})[name]
        slurmd = self._site.slurmd_of(node)
        do, undo = (script.replace("svc slurmd", f"svc {slurmd}") for script in (do, undo))
        where = node if slurmd in do or self._site.holds_jobs else host.name
        return Fault(
            name, where, lambda: _quietly(host.bash(do, check=False)), lambda: _quietly(host.bash(undo, check=False))
        )

    def prepare(self) -> None:
        """Give each node a small disk of its own for what Berth keeps there, to be filled."""
        self._on("ctl", f"rm -f {RUN}/filler {STATE}/filler")
        for host in self._site.hosts() if self._site.holds_jobs else ():
            host.bash(
                f"svc berth-guard stop; mkdir -p {RUN}; mount -t tmpfs -o size=8m,mode=755 tmpfs {RUN};"
                " svc berth-guard start"
            )

    def put_back(self) -> None:
        """Take the small disks away."""
        for host in self._site.hosts() if self._site.holds_jobs else ():
            host.bash(f"svc berth-guard stop; umount -l {RUN}; svc berth-guard start")

    def _on(self, controller: str, script: str) -> None:
        self._site.controllers[controller].bash(script, check=False)

    def _hand_over(self, name: str) -> None:
        before = self._times_in_control("ctl2")
        # In one script: a slurmctld that is started again at once would keep control.
        self._on("ctl", _TAKES_OVER[name])
        self._await_control("ctl2", before)

    def _take_back(self) -> None:
        before = self._times_in_control("ctl")
        self._on("ctl", "svc slurmctld start; svc berthd start")
        self._await_control("ctl", before)

    def _times_in_control(self, controller: str) -> int:
        return int(self._site.controllers[controller].bash(_IN_CONTROL, check=False).strip() or 0)

    def _await_control(self, controller: str, before: int) -> None:
        until = time.monotonic() + TAKEN_OVER_WITHIN
        while self._times_in_control(controller) <= before:
            if time.monotonic() > until:
                raise TimeoutError(f"slurmctld on {controller} has not taken control within {TAKEN_OVER_WITHIN:g} s")
            time.sleep(0.5)

    def _cut(self, host: str) -> None:
        _docker("network", "disconnect", f"{self._site.project}_cluster", f"{self._site.project}-{host}")

    def _join(self, host: str) -> None:
        words = ("--alias", host, f"{self._site.project}_cluster", f"{self._site.project}-{host}")
        _docker("network", "connect", *words)


def _nothing() -> None:
    """Undoes what ends by itself: the daemon is started again."""


def _quietly(_: str) -> None:
    """Takes what a script printed."""


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
    "disk of berthd full": (f"dd if=/dev/zero of={RUN}/filler bs=64k 2>/dev/null; true", f"rm -f {RUN}/filler"),
    "two berthds": (_START_SECOND, f"kill $(cat {_SECOND}/pid); sleep 1; rm -rf {_SECOND}"),
    "plugin of another version": (_OTHER_PLUGIN, f"mv /tmp/plugin.kept {_PLUGIN}; svc slurmctld restart"),
    "upgrade of Berth, this release over itself": (
        "svc berthd stop; setpriv --reuid=slurm --regid=slurm --init-groups berth release --all --for-now",
        "svc berthd start",
    ),
    "an admin reconfigures": ("scontrol reconfigure", ""),
}

_TAKES_OVER: Mapping[str, str] = {
    "backup takes over: slurmctld killed": "touch /run/cluster/slurmctld.stopped; svc slurmctld kill",
    "backup takes over: slurmctld and berthd killed": (
        "touch /run/cluster/slurmctld.stopped /run/cluster/berthd.stopped; svc slurmctld kill; svc berthd kill"
    ),
    "backup takes over: an admin wants it": "touch /run/cluster/slurmctld.stopped; timeout 60 scontrol takeover 1",
}
"""What makes it happen. What is stopped in this way is not started again before the primary comes back."""

_BACKUP: Mapping[str, tuple[str, str]] = {
    "slurmctld of the backup killed": ("svc slurmctld kill", ""),
    "berthd of the backup killed": ("svc berthd kill", ""),
    "disk of the controllers full": (
        f"dd if=/dev/zero of={STATE}/filler bs=64k 2>/dev/null; true",
        f"rm -f {STATE}/filler",
    ),
}
"""The disk with StateSaveLocation is small where two controllers share it."""

_LOSES_STATE = {"slurmctld killed", *_TAKES_OVER}

_NODE: Mapping[str, tuple[str, str]] = {
    "slurmd killed": ("svc slurmd kill", ""),
    "slurmd stopped in its steps": ("svc slurmd pause", "svc slurmd resume"),
    "munge of a node gone": ("pkill -KILL -x munged", _START_MUNGED),
    "a job's step daemon killed": ("pkill -KILL -o slurmstepd", ""),
}

_NODE_OF_BERTH: Mapping[str, tuple[str, str]] = {
    "guard killed": ("svc berth-guard kill", ""),
    "guard stopped in its steps": ("svc berth-guard pause", "svc berth-guard resume"),
    "MPS killed": ("pkill -KILL -f nvidia-cuda-mps", ""),
    "disk of a node full": (f"dd if=/dev/zero of={RUN}/filler bs=64k 2>/dev/null; true", f"rm -f {RUN}/filler"),
    "disk of a node read-only": (f"mount -o remount,ro {RUN}", f"mount -o remount,rw {RUN}"),
}
