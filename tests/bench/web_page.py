# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, for `make bench NAME=web`: how soon it is there, how large, and whom it shuts out.

`python -m tests.bench.web_page [--nodes 64 1024]`: a made-up day on so many nodes of eight GPUs, in the middle of its
jobs. Chromium opens five views in light, in dark and on a phone of 390 pixels; axe-core looks for what keeps people
out. The pictures are in build/bench/web. It needs chromium, and Playwright in build/browser, which the target brings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from containers.demo_web import trace
from policy.placement.registry import create
from policy.serve.web.access import WebAccess
from policy.serve.web.simulated import SimulatedSource
from policy.simulate.inputs import read_traces
from policy.simulate.play import run
from policy.simulate.report.history import write_history
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.world import Layout, build
from tests.bench.table import Figure, at_most, report
from tests.unit.policy.serve.web.web_world import BROWSER, served

PLAYWRIGHT = Path("build/browser/bin/python")
PICTURES = Path("build/bench/web")
HOURS, JOBS_PER_NODE, AT = 8.0, 8, 4 * 3600
JOB = "1100"


def day(nodes: int, folder: Path) -> Path:
    """Writes the history of a made-up day."""
    jobs, history = folder / "day.txt", folder / "day.json"
    jobs.write_text(trace(JOBS_PER_NODE * nodes, HOURS))
    fleet = build(Layout(nodes, 8, nodes_per_leaf=16, leaves_per_pod=4))
    settings = SlurmSettings(order="fifo", pinned=True, history=True)
    write_history(run(read_traces([str(jobs)]).jobs, fleet, create("berth"), settings), fleet, str(history))
    return history


def looked_at(nodes: int, browser: str) -> dict[str, Any]:
    """Serves the page of so many nodes, and has the browser open it."""
    pictures = PICTURES / str(nodes)
    pictures.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, served(SimulatedSource(day(nodes, Path(folder))), WebAccess()) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/?at={AT}"
        script = str(Path(__file__).with_name("browser.py"))
        asked = [str(PLAYWRIGHT), script, browser, address, str(pictures), JOB, "n0"]
        done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(nodes: int, found: dict[str, Any]) -> list[Figure]:
    """Returns the figures of one size of cluster."""
    views = found["views"]
    return [
        at_most(f"first_paint_{nodes}", found["first_paint_ms"] / 1e3, 2.0, "s"),
        at_most(f"room_{nodes}", found["room_ms"] / 1e3, 2.0, "s"),
        at_most(f"bytes_{nodes}", found["bytes"] / 1e6, 1.0, "MB"),
        at_most(f"axe_serious_{nodes}", sum(len(one["serious"]) for one in views), 0, "findings"),
        at_most(f"too_wide_{nodes}", sum(one["too_wide"] for one in views), 0, f"of {len(views)} views"),
    ]


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 1024], help="sizes of the cluster")
    args = parser.parse_args()
    if BROWSER is None:
        print("bench-web: no chromium is installed; install the package chromium")
        return 1
    found = []
    for nodes in args.nodes:
        looked = looked_at(nodes, BROWSER)
        found += figures(nodes, looked)
        for view in looked["views"]:
            for finding in view["serious"]:
                print(f"bench-web: {nodes} nodes, {view['view']}, {view['look']}: {finding}")
    version = subprocess.run([BROWSER, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    report("web", "The page in a browser", found, {"browser": version})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
