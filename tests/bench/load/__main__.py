# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=load`: berthd's own processes under a workload of tests/load, beside Slurm on paper.

Real: the answering and the planning process with their sockets, the notices' port, and the gateway on the protocol of
berth-slurm. On paper: slurmctld, nodes, users and munge, each in a process of its own on the same machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from policy.formats.errors import BerthError
from policy.site.ask import status
from tests.bench.hook import AS_ITS_UNIT, quantile
from tests.bench.load import locks
from tests.bench.load.processes import STOP, Controller, Nodes, Users
from tests.bench.load.timed import TIMES
from tests.bench.load.workload import Workload, load
from tests.bench.table import Figure, at_most, report
from tests.fakes import munge
from tests.programs import python_program
from topology import files, machines

ROOT = Path(__file__).resolve().parents[3]
WORKLOADS = ROOT / "tests" / "load"
STARTS_WITHIN = 300.0
WARM_SHARE = 0.25
"""The part of the run after which memory is expected to be flat."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """MB in memory and seconds of a processor, of one process at one moment."""

    at: float
    rss_mb: float
    processor_s: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A planning pass: its begin, and seconds of its look, of all of it, and of a processor for both parts."""

    began: float
    look: float
    look_processor: float
    whole: float
    processor: float
    jobs: float
    left: float
    """Writes of the pass before that it threw away, to plan them anew."""

    @property
    def planned(self) -> float:
        return self.whole - self.look


@dataclass(slots=True)
class LoadRun:
    """Holds the figures of a run."""

    passes: list[Pass]
    users: dict[str, Any]
    nodes: dict[str, Any]
    controller: dict[str, Any]
    samples: dict[str, list[Sample]]
    problem: str = ""


def sample(pid: int) -> Sample:
    """A look at /proc."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return Sample(time.monotonic(), pages * _PAGE / 1e6, (int(words[11]) + int(words[12])) / _TICK)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def lay_out(folder: Path, workload: Workload) -> int:
    """Write a site's files: berth.conf, topology files, a tree of leaves, and the programs of Slurm; the port."""
    (folder / "topology").mkdir()
    number = 0
    for group in workload.cluster:
        for _ in range(group.nodes):
            name = f"n{number}"
            (folder / "topology" / f"{name}.json").write_text(files.encode(machines.machine(group.machine, name)))
            number += 1
    leaves = [
        f"SwitchName=leaf{at} Nodes=n[{16 * at}-{min(number, 16 * at + 16) - 1}]" for at in range(-(-number // 16))
    ]
    top = f"SwitchName=top Switches=leaf[0-{len(leaves) - 1}]"
    (folder / "topology.conf").write_text("\n".join([*leaves, top, ""]))
    port = free_port()
    (folder / "berth.conf").write_text(
        f'[hook]\nsocket = "{folder}/berthd.sock"\npinned_file = "{folder}/pinned"\n'
        f'[berthd]\ntopology_dir = "{folder}/topology"\nfabric = "{folder}/topology.conf"\n'
        f'[notice]\nhosts = "localhost"\nport = {port}\n'
    )
    for part in ("bin", "libexec/berth"):
        (folder / part).mkdir(parents=True)
    python_program(folder / "bin" / "scontrol", "import sys\nsys.exit('scontrol: Slurm is on paper here')\n")
    python_program(
        folder / "libexec" / "berth" / "berth-slurm",
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.argv[1:1] = [{str(folder / 'slurm.sock')!r}]\n"
        "from tests.bench.load import program\nsys.exit(program.main())\n",
    )
    return port


@contextmanager
def process(name: str, run: Callable[[], None]) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process of this program, that ends with it."""
    one = multiprocessing.get_context("fork").Process(target=run, name=name, daemon=True)
    one.start()
    try:
        yield one
    finally:
        one.terminate()
        one.join(5)


@contextmanager
def program(words: list[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program with this site's Slurm on PATH and berthd's priority; its log stays where the run failed."""
    environment = {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(munge.library().parent), "SLURM_CONF": str(folder / "slurm.conf"),
        TIMES: str(folder / "passes"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    # Only root may raise a priority.
    words = [*AS_ITS_UNIT.split(), *words] if os.geteuid() == 0 else words
    with log.open("ab") as out, subprocess.Popen(words, env=environment, stdout=out, stderr=out, cwd=ROOT) as one:
        try:
            yield one
        finally:
            one.send_signal(signal.SIGTERM)
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()


def children(pid: int) -> list[int]:
    """The processes that a process started, and that still run."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in found.split()]


def run(workload: Workload, log: Path) -> LoadRun:
    """Start all of it, let the users submit for the workload's seconds, and gather what each process measured."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    with tempfile.TemporaryDirectory(prefix="berth-load-") as name:
        folder = Path(name)
        port = lay_out(folder, workload)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, nodes_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def controls() -> None:
            nodes_end.close()
            mine.close()
            Controller(workload, folder / "slurm.sock", ours, theirs).run(folder / "controller")

        def nodes() -> None:
            ours.close()
            Nodes(port, nodes_end).run(folder / "nodes")

        def users() -> None:
            Users(workload, folder / "berthd.sock", folder / "echo.sock", mine).run(folder / "users")

        echo = [sys.executable, str(ROOT / "tests" / "bench" / "c" / "echo_daemon.py"), str(folder / "echo.sock")]
        berthd = [sys.executable, "-m", "tests.bench.load.timed", "--config", str(folder / "berth.conf")]
        with mine, theirs, process("controller", controls) as paper, process("nodes", nodes) as epilogs:
            ours.close()
            nodes_end.close()
            theirs.close()
            _wait_for(folder / "slurm.sock", paper)
            with program(echo, folder, log), program(berthd, folder, log) as answering:
                planning = _ready(folder / "berthd.sock", answering, workload)
                samples: dict[str, list[Sample]] = {"answering": [], "planning": []}
                with process("users", users) as sender:
                    while sender.is_alive():
                        for one, pid in (("answering", answering.pid), ("planning", planning)):
                            samples[one].append(sample(pid))
                        sender.join(1.0)
                problem = ""
                if children(answering.pid) and planning not in children(answering.pid):
                    problem = "the planning process ended during the run"
                mine.send(STOP)
                paper.join(10)
                epilogs.join(10)
        passes = [line.split() for line in (folder / "passes").read_text(encoding="utf-8").splitlines()]
        told = {one: json.loads((folder / one).read_text(encoding="utf-8")) for one in ("users", "nodes", "controller")}
        return LoadRun(
            [Pass(*map(float, one)) for one in passes],
            told["users"], told["nodes"], told["controller"], samples, problem,
        )  # fmt: skip


def _wait_for(path: Path, owner: multiprocessing.process.BaseProcess) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while not path.exists():
        if not owner.is_alive() or time.monotonic() > until:
            raise BerthError("bench-load: Slurm on paper did not start; its traceback stands above")
        time.sleep(0.05)


def _ready(path: Path, berthd: subprocess.Popen[bytes], workload: Workload) -> int:
    """Wait for the first two passes; the planner's process."""
    until = time.monotonic() + STARTS_WITHIN
    wanted = workload.waiting.jobs + workload.waiting.arrays
    while time.monotonic() < until and berthd.poll() is None:
        time.sleep(0.5)
        try:
            told = status(path)
        except BerthError:
            continue
        if int(told.get("waiting", "0")) >= min(wanted, 1) and told.get("pass_ms"):
            return children(berthd.pid)[0]
    raise BerthError("bench-load: berthd did not read Slurm on paper; see build/bench/load-WORKLOAD.log")


def figures_of(workload: Workload, found: LoadRun) -> list[Figure]:
    """The table."""
    must, users, controller = workload.thresholds, found.users, found.controller
    began, ended = users["began"], users["ended"]
    passes = [one for one in found.passes if began <= one.began <= ended]
    hook, echo = ([1_000 * one[at] for one in users["took"]] for at in (0, 1))
    over = quantile(hook, 0.99) - quantile(echo, 0.99)
    planned = [1_000 * one.planned for one in passes]
    notices = [1_000 * one for one in found.nodes["took"]]
    rss = [sum(one.rss_mb for one in both) for both in zip(*found.samples.values(), strict=False)]
    at = [one.at for one in found.samples["planning"]][: len(rss)]
    warm = int(WARM_SHARE * len(rss))
    growth = float(np.polyfit(at[warm:], rss[warm:], 1)[0]) * 60 if len(rss) - warm >= 5 else 0.0
    figures = [
        Figure("hook_p50_ms", quantile(hook, 0.5), "ms", "bare echo", quantile(echo, 0.5)),
        Figure("hook_p99_ms", quantile(hook, 0.99), "ms", "bare echo", quantile(echo, 0.99)),
        _limited("hook_p99_over_echo_ms", over, must.hook_p99_over_echo_ms, "ms"),
        Figure("hook_unanswered", users["unanswered"], f"of {len(hook)}"),
        Figure("passes", len(passes), f"in {ended - began:.0f} s"),
        Figure("look_p50_ms", 1_000 * quantile([one.look for one in passes], 0.5), "ms"),
        Figure("look_p99_ms", 1_000 * quantile([one.look for one in passes], 0.99), "ms"),
        Figure("look_processor_p99_ms", 1_000 * quantile([one.look_processor for one in passes], 0.99), "ms"),
        Figure("pass_p50_ms", quantile(planned, 0.5), "ms"),
        Figure("pass_processor_p50_ms", 1_000 * quantile([one.processor for one in passes], 0.5), "ms"),
        Figure("pass_processor_p99_ms", 1_000 * quantile([one.processor for one in passes], 0.99), "ms"),
        _limited("pass_p99_ms", quantile(planned, 0.99), must.pass_p99_ms, "ms"),
    ]
    if notices:
        figures += [
            Figure("notice_p50_ms", quantile(notices, 0.5), "ms"),
            _limited("notice_p99_ms", quantile(notices, 0.99), must.notice_p99_ms, "ms"),
            Figure("notice_unanswered", found.nodes["unanswered"], f"of {len(notices)}"),
        ]
    figures += [
        Figure("rss_first_mb", rss[0], "MB"),
        _limited("rss_mb", max(rss), must.rss_mb, "MB"),
        _limited("rss_growth_mb_per_minute", growth, must.rss_growth_mb_per_minute, "MB/min"),
    ]
    if users["bursts"]:
        seen = seen_after(users["bursts"], found.passes, ended - (must.burst_seen_s or 0.0))
        if seen is not None:
            figures.append(_limited("burst_seen_s", seen, must.burst_seen_s, "s"))
    looks = [look for one in controller["looks"] if began <= (look := locks.SlurmLook(*one)).at <= ended]
    held = locks.of_looks(looks) + locks.of_calls(controller["updates"], controller["asked"])
    held /= ended - began
    figures += [
        _limited("lock_ms_per_s", held, must.lock_ms_per_s, "ms/s, worked out"),
        Figure("records", looks[-1].jobs if looks else 0, "jobs in Slurm"),
        Figure("changed_p50", quantile([float(one.changed) for one in looks], 0.5), "jobs a look"),
        Figure("submitted", users["submitted"] / (ended - began), "1/s"),
        Figure("ended", controller["ended"] / (ended - began), "1/s"),
        Figure("begun", controller["begun"] / (ended - began), "1/s"),
        Figure("updates", controller["updates"] / (ended - began), "1/s"),
        Figure("writes_left", passes[-1].left if passes else 0, "at the last pass"),
        Figure("waiting", controller["waiting"], "jobs and tasks at the end"),
    ]
    for name, one in found.samples.items():
        used = (one[-1].processor_s - one[0].processor_s) / (one[-1].at - one[0].at) if len(one) > 1 else 0.0
        figures.append(Figure(f"{name}_processor", 100 * used, "% of a core"))
    return figures


def _limited(name: str, value: float, limit: float | None, unit: str) -> Figure:
    return Figure(name, value, unit) if limit is None else at_most(name, value, limit, unit)


def seen_after(bursts: list[tuple[float, float]], passes: list[Pass], judged_until: float) -> float | None:
    """Seconds from a burst's last submission to the end of the first pass that read it, of the slowest burst.

    A burst after `judged_until` that no pass has seen is left out: the run ended too soon after it. None: all were.
    """
    ends = [min((one.began + one.whole for one in passes if one.began >= last), default=np.inf) for _, last in bursts]
    seen = [end - last for (_, last), end in zip(bursts, ends, strict=True) if end < np.inf or last <= judged_until]
    return max(seen, default=None)


def main() -> int:
    """Exit status 1 where a threshold is passed."""
    parser = argparse.ArgumentParser(prog="make bench NAME=load", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("workload", nargs="?", default="busy", help="a file of tests/load without .yaml, or a path")
    parser.add_argument("--minutes", type=float, help="instead of the workload's seconds")
    options = parser.parse_args()
    path = Path(options.workload)
    path = path if path.suffix else WORKLOADS / f"{options.workload}.yaml"
    try:
        workload = load(path)
        if options.minutes is not None:
            workload = replace(workload, seconds=60 * options.minutes)
        log = ROOT / "build" / "bench" / f"load-{path.stem}.log"
        busy = os.getloadavg()[0]
        found = run(workload, log)
    except BerthError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    notes = {
        "workload": workload.about, "seconds": f"{workload.seconds:g}", "load": f"{busy:.1f}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    figures = figures_of(workload, found)
    report(f"load-{path.stem}", f"{path.stem}: {workload.about}", figures, notes)
    told = [
        f"{one.name} is {one.value:.1f} {one.unit}, and has to be {one.must}" for one in figures if one.good is False
    ]
    told += [found.problem] if found.problem else []
    for line in told:
        sys.stderr.write(f"bench-load: {line}\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
