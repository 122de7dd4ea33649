# SPDX-License-Identifier: Apache-2.0
"""`make demo-web`: a made-up day on a simulated cluster, shown by `berth web`; without Slurm and without Docker."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path("build/demo-web")
USERS = tuple(f"user{number:02}" for number in range(1, 13))
NAMES = ("pretrain", "finetune", "resnet50", "bert", "diffusion", "rl-sweep", "eval", "whisper", "gnn", "debug")
WIDTHS, SHARES = (1, 2, 4, 8, 16, 32), (38, 20, 18, 14, 7, 3)


def trace(jobs: int, hours: float, seed: int = 1) -> str:
    """Returns a day of made-up jobs in the form of sacct, the same ones each time."""
    draw = random.Random(seed)  # noqa: S311 - made-up jobs
    lines = ["JobID|User|Account|JobName|Submit|ElapsedRaw|State|AllocTRES|Timelimit|NNodes"]
    for number, submit in enumerate(sorted(draw.uniform(0, hours * 3600) for _ in range(jobs)), 1001):
        [gpus] = draw.choices(WIDTHS, SHARES)
        ran = 240 + 26_000 * draw.random() ** 2.6
        place = draw.randrange(len(USERS))
        limit = f"{int(ran * draw.uniform(1.2, 3.0)) // 3600 + 1:02d}:00:00"
        nodes = max(1, gpus // 8)
        row = (number, USERS[place], f"group{place % 4}", draw.choice(NAMES), int(submit), int(ran), "COMPLETED")
        lines.append("|".join(map(str, (*row, f"gres/gpu={gpus}", limit, nodes))))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Simulates the day, then serves the page until it is interrupted."""
    parser = argparse.ArgumentParser(prog="make demo-web")
    parser.add_argument("--port", default="8484")
    parser.add_argument("--nodes", type=int, default=16)
    options = parser.parse_args()
    # What runs below it ends with it, whoever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    jobs, history = FOLDER / "day.txt", FOLDER / f"day-{options.nodes}.json"
    if not history.exists():
        jobs.write_text(trace(19 * options.nodes, 24.0))
        print(f"demo-web: simulates a day of {19 * options.nodes} made-up jobs on {options.nodes} nodes", flush=True)
        cluster = ["--nodes", str(options.nodes), "--machine", "hgx-h100", "--nodes-per-leaf", "4"]
        cluster += ["--leaves-per-pod", "2", "--mode", "berthd", "--policy", "berth"]
        cluster += ["--history", str(history)]
        words = [*_BERTH, "simulate", str(jobs), *cluster]
        # Ctrl-C does not reach it: `run` ends it, however early in its start.
        done = subprocess.run(words, stdout=subprocess.DEVNULL, process_group=0, check=False)
        if done.returncode:
            return done.returncode
    print(f"demo-web: ready after {time.monotonic() - began:.0f} s; end it with Ctrl-C", flush=True)
    # In place of this process: signals reach the page itself.
    return os.execv(sys.executable, [*_BERTH, "web", "--from-simulation", str(history), "--port", options.port])


_BERTH = (sys.executable, "-m", "policy.cli.main")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
