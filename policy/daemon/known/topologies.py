# SPDX-License-Identifier: Apache-2.0
"""The machines and the fabric that berthd plans with, read again when their files change."""

import time
from pathlib import Path

from policy.site import config, log
from topology.errors import TopologyError
from topology.files import load_directory, stamp
from topology.model import Machine
from topology.network.fabric import Fabric
from topology.providers import slurm_fabric

PATIENCE = 20
"""The pause after a look at all files, as a multiple of its time; at 12,500 nodes a look takes 70 ms."""


class Topologies:
    """The topology files and Slurm's topology.conf or topology.yaml.

    An unreadable file is logged. Without its topology file, a node gets no jobs; without the fabric, no leaves and
    pods are known.
    """

    def __init__(self, folder: Path, fabric: str = "") -> None:
        """`fabric` is the key of that name in berth.conf."""
        self._folder, self._choice = folder, fabric
        self._mark = ""
        self._next_look = 0.0
        self.machines: dict[str, Machine] = {}
        self.fabric = Fabric.flat(())

    def refresh(self) -> bool:
        """Reads the files if one changed; tells whether one did."""
        begin = time.monotonic()
        if begin < self._next_look:
            return False
        source = config.fabric_file(self._choice)
        mark = stamp([self._folder, *(slurm_fabric.sources(source) if source else ())])
        looked = time.monotonic()
        self._next_look = begin + PATIENCE * (looked - begin)
        if mark == self._mark:
            return False
        self._read(source)
        self._mark = mark
        log.info(
            f"{len(self.machines)} topology files in {self._folder}, {time.monotonic() - looked:.1f} s;"
            f" leaves and pods from {source or 'nowhere'}",
            633,
        )
        for conflict in self.fabric.conflicts:
            log.error(conflict, 634)
        return True

    def _read(self, source: Path | None) -> None:
        try:
            self.machines = load_directory(self._folder, log.error)
        except TopologyError as problem:
            log.error(f"{problem}; what is known already stays in use", 634)
        slurm = None
        try:
            slurm = slurm_fabric.read(source) if source else None
        except TopologyError as problem:
            log.error(f"{problem}; no leaves and pods are known", 635)
        self.fabric = Fabric.of(self.machines.values(), slurm)
