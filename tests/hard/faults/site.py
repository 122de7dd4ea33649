# SPDX-License-Identifier: Apache-2.0
"""What the campaign needs to know of a cluster: its controllers, its nodes, and the containers in which they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from containers.cluster import NODES_OF_PROFILE, NODES_PER_SCALE_HOST
from tests.slurm.harness import Slurm
from tests.slurm.target import Container, Result

NODE_DISK = "/run/berth"


@dataclass(slots=True)
class Host:
    """A container with one node or several."""

    name: str
    target: Container

    def bash(self, script: str, *, check: bool = True, timeout: float = 120.0) -> str:
        """Run a script as root; what it printed."""
        return self.target.bash(script, user="root", check=check, timeout=timeout).out


@dataclass
class FaultySite:
    """A cluster under faults."""

    slurm: Slurm
    profile: str = "base"
    backup: bool = False
    _hosts: dict[str, Host] = field(default_factory=dict)

    @cached_property
    def project(self) -> str:
        """The prefix of its containers."""
        return self.slurm.target.name.removesuffix("-ctl")

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes."""
        return tuple(f"n{number}" for number in range(1, NODES_OF_PROFILE[self.profile] + 1))

    @property
    def holds_jobs(self) -> bool:
        """Tells whether nodes have Berth's Prolog and guard, and device cgroups: not those that share a container."""
        return self.profile != "scale"

    @property
    def in_the_queue(self) -> int:
        """Jobs that are kept in the queue."""
        return 24 if self.holds_jobs else 48

    def host_of(self, node: str) -> Host:
        """The container of a node."""
        return self._host(node if self.holds_jobs else f"h{(int(node[1:]) - 1) // NODES_PER_SCALE_HOST + 1}")

    def slurmd_of(self, node: str) -> str:
        """The name of a node's slurmd for `svc`."""
        return "slurmd" if self.holds_jobs else f"slurmd.{node}"

    def hosts(self) -> list[Host]:
        """All containers with nodes."""
        return list({host.name: host for host in map(self.host_of, self.nodes)}.values())

    @cached_property
    def controllers(self) -> dict[str, Host]:
        """The controller, then its backup."""
        return {name: self._host(name) for name in ("ctl", *(["ctl2"] if self.backup else []))}

    def log(self, daemon: str, pattern: str, *, after: Mapping[str, int] | None = None) -> dict[str, list[str]]:
        """The lines of a daemon's log that a pattern finds, on each controller; `after` so many lines."""
        since = after or {}
        return {
            name: host.bash(
                f"tail -n +{since.get(name, 0) + 1} /var/log/cluster/{daemon}.log | grep -E '{pattern}'", check=False
            ).splitlines()
            for name, host in self.controllers.items()
        }

    def length(self, daemon: str) -> dict[str, int]:
        """How many lines a daemon's log has on each controller."""
        return {
            name: int(host.bash(f"wc -l </var/log/cluster/{daemon}.log").strip() or 0)
            for name, host in self.controllers.items()
        }

    def ask(self, *words: str) -> Result:
        """Run a command of Slurm's or Berth's as root on the controller; it may fail, but it ends."""
        return self.slurm.target.run(["timeout", "60", *words], user="root", check=False, timeout=120)

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(name, Container(f"{self.project}-{name}"))
        return self._hosts[name]
