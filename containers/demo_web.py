"""`make demo-web`: a made-up day on a simulated cluster, shown by `berth web`; without Slurm and without Docker."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    jobs, history = FOLDER / "day.txt", FOLDER / f"day-{options.nodes}.json"
    if not history.exists():
        jobs.write_text(trace(19 * options.nodes, 24.0))
        print(f"demo-web: simulates a day of {19 * options.nodes} made-up jobs on {options.nodes} nodes", flush=True)
        cluster = ["--nodes", str(options.nodes), "--machine", "hgx-h100", "--nodes-per-leaf", "4"]
        cluster += ["--leaves-per-pod", "2", "--mode", "berthd", "--policy", "berth"]
        cluster += ["--history", str(history)]
        if status := run([*_BERTH, "simulate", str(jobs), *cluster]):
            return status
    print(f"demo-web: ready after {time.monotonic() - began:.0f} s; end it with Ctrl-C", flush=True)
    # The page takes the place of this process, so that a signal meets nothing else.
    words = [*_BERTH, "web", "--from-simulation", str(history), "--port", options.port]
    return os.execv(words[0], words)


def run(words: Sequence[str]) -> int:
    """Runs a program; the program ends if this one is told to end. Returns its exit status."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            status = process.wait()
        except KeyboardInterrupt:
            # The terminal has interrupted both.
            status = process.wait() or 128 + signal.SIGINT
        signal.signal(signal.SIGTERM, before)
    return status if status >= 0 else 128 - status


_BERTH = (sys.executable, "-m", "policy.cli.main")


if __name__ == "__main__":
    raise SystemExit(main())
