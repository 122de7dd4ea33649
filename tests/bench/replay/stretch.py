# SPDX-License-Identifier: Apache-2.0
"""How much longer a job takes on given GPUs: the table of the shared data, for the jobs' own program."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from topology.model import Machine
from topology.scores import Score

ROOT = Path(__file__).resolve().parents[3]
GPUS = 8

MACHINES = ("dgx-1v", "hgx-h100", "a6000-pairs", "l40s")
"""Nodes n1 to n16 are of the first kind, n17 to n32 of the second, and so on."""
NODES_OF_A_KIND = 16


class NoTableError(Exception):
    """The shared data are not there."""


def table_path() -> Path:
    """Where the stretch table is: under BERTH_DATA, else beside the repository."""
    folder = Path(os.environ.get("BERTH_DATA") or ROOT.parent / "shared" / "data")
    path = folder / "replay" / "stretch.json"
    if not path.is_file():
        raise NoTableError(f"{path} is not there: set BERTH_DATA to the folder that holds replay/stretch.json")
    return path


def machine_of(node: int) -> str:
    """The kind of the machine that a node (1 to 64) is."""
    return MACHINES[(node - 1) // NODES_OF_A_KIND]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The table as it was given."""

    sensitivity: Mapping[str, float]
    level: Mapping[str, float]
    leaf_size: int
    pod_size: int
    gpu: Mapping[str, float]
    """By `NODE:POSITION`: time over the median of the fleet, for a job that suffers fully from it."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read stretch.json."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["sensitivity"], data["level"], data["leaf_size"], data["pod_size"], data["gpu"])

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return len(self.gpu) // GPUS

    def flat(self, machines: Mapping[str, Machine]) -> str:
        """The table as replay_job reads it, with the NVLinks of each kind of machine."""
        lines = [f"sensitivity {name} {value}" for name, value in self.sensitivity.items()]
        lines += [f"level {name} {value}" for name, value in self.level.items()]
        for node in range(1, self.nodes + 1):
            masks = linked(machines[machine_of(node)])
            words = [f"{self.gpu[f'n{node}:{gpu}']}:{masks[gpu]:x}" for gpu in range(GPUS)]
            place = f"n{node} {(node - 1) // self.leaf_size} {(node - 1) // self.pod_size}"
            lines.append(f"node {place} {' '.join(words)}")
        return "\n".join(lines) + "\n"

    def scores(self, machines: Mapping[str, Machine], seed: int, noise: float = 0.01) -> list[Score]:
        """What calibration would measure on each node: the truth, a relative error of `noise` (one sigma) off."""
        draws = random.Random(seed)
        runs = 5
        return [
            Score(
                node=name,
                position=gpu.position,
                uuid=gpu.uuid,
                app_class=app_class,
                score=round((1 + share * (self.gpu[f"{name}:{gpu.position}"] - 1)) * draws.gauss(1, noise), 4),
                runs=runs,
                spread=noise,
            )
            for name in (f"n{node}" for node in range(1, self.nodes + 1))
            if name in machines
            for gpu in machines[name].gpus
            for app_class, share in self.sensitivity.items()
        ]


def linked(machine: Machine) -> list[int]:
    """For each GPU, a bit for each other one that NVLink joins to it."""
    masks = [0] * len(machine.gpus)
    for link in machine.links:
        masks[link.a] |= 1 << link.b
        masks[link.b] |= 1 << link.a
    return masks
