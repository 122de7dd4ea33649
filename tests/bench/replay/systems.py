# SPDX-License-Identifier: Apache-2.0
"""What a replay compares."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

SCORES = "/etc/slurm/berth/scores.csv"
BASE = Path(__file__).resolve().parents[3] / "containers" / "config" / "berth.conf"


@dataclass(frozen=True, slots=True)
class System:
    """A way to run the cluster."""

    name: str
    berth: bool
    policy: str = "berth"
    scores: bool = True
    epilog: bool = True
    foresees: bool = False
    """On paper alone: who knows all jobs' ends."""

    def berth_conf(self) -> str:
        """The test cluster's berth.conf, with what this system has of its own."""
        own = [f'policy = "{self.policy}"', *([f'scores = "{SCORES}"'] if self.scores else [])]
        text = BASE.read_text(encoding="utf-8")
        text = text.replace("[hook]\n", '[hook]\nmessage = "never"\n')
        # The tests' cluster is read four times a second; notices tell what counts, and reading takes slurmctld's locks.
        text = text.replace("tick_ms = 250\n", "tick_ms = 1000\n")
        text = re.sub("^exclude_others = .*\n", "", text, flags=re.MULTILINE)
        return text.replace("[berthd]\n", "\n".join(["[berthd]", *own, ""]))

    def slurm_conf(self) -> str:
        """Lines of slurm.conf that are its own."""
        return "Epilog=/bin/true\n" if self.epilog and not self.berth else ""


def notice_log() -> str:
    """Where the Epilogs' notices are logged in the cluster; empty where they are not."""
    log = tomllib.loads(BASE.read_text(encoding="utf-8")).get("notice", {}).get("log", "")
    return str(log)


SYSTEMS = {
    system.name: system
    for system in (
        System("plain", berth=False, epilog=False),
        System("plain2", berth=False, epilog=False),  # the same once more: how much two runs differ by chance
        System("epilog", berth=False),  # after each Epilog slurmctld looks at its queue, as it does with Berth's
        System("berth", berth=True),
        System("random", berth=True, policy="pinned-random"),
        System("noscores", berth=True, scores=False),
        # Published policies that know the scores; the queue, the wait for a near place and the pins are berthd's.
        System("pal", berth=True, policy="pal"),
        System("pm-first", berth=True, policy="pm-first"),
    )
}

ORACLE = System("oracle", berth=True, foresees=True)
