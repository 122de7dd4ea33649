# SPDX-License-Identifier: Apache-2.0
"""Brings a cluster up, plays the scenes, and takes the cluster down whatever happens."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from containers.cluster import PREFIX
from containers.demo import links
from containers.demo.scenes import SCENES
from containers.demo.site import Site, read
from topology.files import decode

CLUSTER = Path(__file__).parents[1] / "cluster.py"
_FILES = "for f in /etc/slurm/berth/topology/*.json; do cat $f; echo; echo ---; done"


def main() -> int:
    """Plays all scenes."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--slurm", default="24.11", help="Slurm version, 24.11 or 26.05 (default %(default)s)")
    version = parser.parse_args().slurm
    console = Console(width=None if sys.stdout.isatty() else 118)
    controller = f"{PREFIX}{version.replace('.', '')}-ctl"
    try:
        subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version], check=True)
        began = time.monotonic()
        texts = read(controller, _FILES).split("\n---\n")
        site = Site(
            controller, {one.node: one for one in (decode(json.loads(text)) for text in texts if text.strip())}, console
        )
        site.prepare()
        console.print(
            "demo: each job goes to the partition 'plain' (Slurm alone) and to 'gpu' (Berth)", highlight=False
        )
        for play in (links.play, *SCENES):
            scene_began = time.monotonic()
            site.clear()
            play(site)
            console.print(f"  [dim]{time.monotonic() - scene_began:.0f} s[/dim]", highlight=False)
        console.print(
            f"\ndemo: {time.monotonic() - began:.0f} s; try it by hand with `make cluster-up`", highlight=False
        )
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
