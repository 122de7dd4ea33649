# SPDX-License-Identifier: Apache-2.0
"""The node side: how long Prolog and Epilog hold a job up, without and with shared GPUs.

The driver and MPS are simulated, and each command of the simulated MPS starts Python anew: a real one is faster.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.unit.node_world import World, berth

from .table import Figure, at_most, report

LIMIT_MS = 100
SHARED_EXTRA_MS = 500
_POLL_SECONDS = 0.01


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def median(rounds: int, work: Callable[[], object]) -> float:
    return statistics.median(milliseconds(work) for _ in range(rounds))


def processor(rounds: int, work: Callable[[], object]) -> float:
    """Milliseconds of CPU, which a busy machine changes less than those on the clock."""
    times = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        work()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times) * 1e3


def succeeds(world: World, context: str, extra: str, gpus: str, job: int = 7) -> None:
    done = world.run(context, extra, gpus, job=job)
    if done.returncode or done.stderr:
        raise RuntimeError(f"the {context} of job {job} failed: {done.stderr}")


def whole(world: World, rounds: int) -> dict[str, float]:
    """Jobs with whole GPUs: nothing of ours on the node, a chain of one empty script, a job that shares nearby."""
    extra = berth(0, 3)

    def bare() -> object:
        return subprocess.run([sys.executable, "-c", "pass"], check=True)

    found = {
        "bare": median(rounds, bare),
        "bare_cpu": processor(rounds, bare),
        "prolog_cpu": processor(rounds, lambda: succeeds(world, "prolog", extra, "3")),
        "epilog_cpu": processor(rounds, lambda: succeeds(world, "epilog", extra, "3")),
        "prolog": median(rounds, lambda: succeeds(world, "prolog", extra, "3")),
        "epilog": median(rounds, lambda: succeeds(world, "epilog", extra, "3")),
    }
    own = str(world.script("own", "exit 0", interpreter="/bin/sh"))
    world.settings |= {"chain_prolog": [own], "chain_epilog": [own]}
    found["script"] = median(rounds, lambda: subprocess.run([own], check=True))
    found["chained_prolog"] = median(rounds, lambda: succeeds(world, "prolog", extra, "3"))
    found["chained_epilog"] = median(rounds, lambda: succeeds(world, "epilog", extra, "3"))
    del world.settings["chain_prolog"], world.settings["chain_epilog"]
    succeeds(world, "prolog", berth(2, share=30, way="mps"), "2", job=99)
    found["prolog_beside"] = median(rounds, lambda: succeeds(world, "prolog", extra, "3"))
    succeeds(world, "epilog", "", "", job=99)
    return found


def mps_alone(world: World) -> float:
    """What an admin's shortest script takes to start MPS and to await its server, and to stop both."""
    pipe = world.folder / "alone"
    pipe.mkdir()
    program = str(world.settings["mps_control"])
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    with subprocess.Popen([program, "-f"], env=environment) as daemon:

        def tell(command: str) -> str:
            done = subprocess.run(
                [program], input=command, env=environment, capture_output=True, text=True, check=False
            )
            return "" if done.returncode else done.stdout

        start = time.perf_counter()
        while not tell("get_default_active_thread_percentage\n"):
            time.sleep(_POLL_SECONDS)
        tell("start_server -uid 1000\n")
        while not (server := tell("get_server_list\n").strip()):
            time.sleep(_POLL_SECONDS)
        while "ACTIVE" not in tell(f"get_server_status {server}\n"):
            time.sleep(_POLL_SECONDS)
        took = (time.perf_counter() - start) * 1e3
        tell("quit\n")
        daemon.wait(10)
    pipe.rename(world.folder / f"alone-{time.monotonic_ns()}")
    return took


def shared(world: World, rounds: int) -> dict[str, float]:
    """The first job on a GPU starts MPS, the second joins it, the last one out stops it."""
    times: dict[str, list[float]] = {}

    def keep(name: str, took: float) -> None:
        times.setdefault(name, []).append(took)

    for _ in range(rounds):
        keep("mps", mps_alone(world))
        for name, context, job in (
            ("first", "prolog", 7),
            ("second", "prolog", 8),
            ("leave", "epilog", 7),
            ("last", "epilog", 8),
        ):
            keep(
                name,
                milliseconds(lambda: succeeds(world, context, berth(2, share=30, way="mps"), "2", job=job)),  # noqa: B023
            )
    return {name: statistics.median(took) for name, took in times.items()}


def looks(world: World, rounds: int) -> float:
    """One look of the guard at eight shared GPUs with two processes each, in a process of its own."""
    for gpu in range(8):
        succeeds(world, "prolog", berth(gpu, share=30, way="time"), str(gpu), job=100 + gpu)
        for number in range(2):
            world.happens(f"process {gpu} {os.getpid() + number} type=compute memory=500")
    script = """
import sys, time
from pathlib import Path
from prolog_epilog.node import processes
from prolog_epilog.tenants import audit
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.guard.program import Watch
from prolog_epilog.node.paths import Paths
from prolog_epilog.job.slurm import Scontrol
watch = Watch(Paths(Path(sys.argv[1])), NodeConfig(), Scontrol(), audit.Judge("warn"), processes.boot_id())
watch.look()
times = []
for _ in range(int(sys.argv[2])):
    start = time.thread_time()
    watch.look()
    times.append(time.thread_time() - start)
print(sorted(times)[len(times) // 2] * 1e3)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(world.root), str(10 * rounds)],
        env={**os.environ, **world.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        world = World(Path(folder))
        world.with_gpus()
        alone = whole(world, args.rounds)
        together = shared(world, max(3, args.rounds // 3))
        look = looks(world, args.rounds)
    python = "an empty Python program", alone["bare"]
    script = "the same script alone", alone["script"]
    mps = "MPS's own start", together["mps"]
    figures = [
        at_most("prolog_ms", alone["prolog"], LIMIT_MS, "ms", *python),
        at_most("epilog_ms", alone["epilog"], LIMIT_MS, "ms", *python),
        Figure("prolog_cpu_ms", alone["prolog_cpu"], "ms of CPU", python[0], alone["bare_cpu"]),
        Figure("epilog_cpu_ms", alone["epilog_cpu"], "ms of CPU", python[0], alone["bare_cpu"]),
        at_most("chained_prolog_ms", alone["chained_prolog"], LIMIT_MS, "ms", *script),
        at_most("chained_epilog_ms", alone["chained_epilog"], LIMIT_MS, "ms", *script),
        Figure("prolog_beside_shared_ms", alone["prolog_beside"], "ms", *python),
        Figure("shared_first_ms", together["first"], "ms", *mps),
        at_most("shared_extra_ms", together["first"] - together["mps"], SHARED_EXTRA_MS, "ms"),
        at_most("shared_join_ms", together["second"], SHARED_EXTRA_MS, "ms", *mps),
        at_most("shared_leave_ms", together["leave"], SHARED_EXTRA_MS, "ms"),
        Figure("shared_last_ms", together["last"], "ms"),
        Figure("guard_look_ms", look, "ms of CPU"),
    ]
    notes = {
        "rounds": str(args.rounds),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "mps": "simulated; each of its commands starts Python anew, which a real one does not",
    }
    report("node", "Prolog, Epilog and guard on one node", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
