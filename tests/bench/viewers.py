"""What viewers of the page cost: the answers that the hook waits for, alone and beside them.

`python -m tests.bench.viewers [--viewers 50] [--turns 5]`: a made-up cluster of 1,024 nodes. One process answers a
submission every 20 ms, as berthd does. A second one is the page's server, of an overview that a third one writes anew
every second. The viewers hold event streams, and fetch each new moment, as the page does. Turns without and with
viewers take ten seconds each and alternate; all share the machine's processors, the viewers with the lowest priority.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Snapshot
from policy.daemon.passes.overviews import moment_of, overview_of
from policy.formats import wire
from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import JobText
from policy.site.overview import OverviewFile
from policy.web.access import WebAccess
from policy.web.live import LiveSource
from policy.web.server import poll
from tests.bench.scrape import Measured
from tests.bench.table import Figure, at_most, report
from tests.unit.policy.web.web_world import served
from tests.unit.policy_world import submit

NODES, TURN, EVERY = 1_024, 10.0, 0.02
READ_EVERY = 5.0
"""Seconds between readings, as `berth web` has them."""


class NoSlurm:
    """Slurm without PrivateData, and without decisions."""

    def job(self, job_id: int) -> JobText:
        """Knows no job: no viewer opens one here."""
        raise SlurmError(f"there is no job {job_id}")

    def config(self) -> dict[str, str]:
        """Returns what the page asks for."""
        return {"PrivateData": "none", "SlurmUser": "slurm(1)"}


def serve(overview: str) -> None:
    """Serves the page of an overview until standard input ends."""
    source = LiveSource(OverviewFile(Path(overview)).read, NoSlurm(), dict)
    with served(source, WebAccess(), patience=1.0) as server:
        stop = threading.Event()
        threading.Thread(target=poll, args=(server.exhibit, source, READ_EVERY, stop), daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        stop.set()


def write(overview: str) -> None:
    """Writes the overview anew every second."""
    told = json.loads(Path(overview).read_text())
    new = Path(f"{overview}.new")
    while True:
        told["at"] += 1.0
        new.write_text(json.dumps(told))
        new.replace(overview)
        time.sleep(1.0)


def watch(port: str, viewers: str) -> None:
    """Holds event streams, and fetches each new moment, until standard input ends; prints how many came."""
    os.nice(19)  # As if they were elsewhere.
    took: list[int] = []
    for _ in range(int(viewers)):
        threading.Thread(target=_one, args=(int(port), took), daemon=True).start()
    print("they watch", flush=True)
    sys.stdin.read()
    print(len(took), sum(took), flush=True)


def _one(port: int, took: list[int]) -> None:
    stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    stream.request("GET", "/api/events")
    for line in stream.getresponse():
        if line.startswith(b"data:"):
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            asked.request("GET", "/api/moment", headers={"Accept-Encoding": "gzip"})
            reply = asked.getresponse()
            body = reply.read()
            # The first moment is empty: nothing is read before somebody looks.
            if reply.headers.get("Content-Encoding") == "gzip" and json.loads(gzip.decompress(body))["jobs"]:
                took.append(len(body))
            asked.close()


def started(*words: str) -> subprocess.Popen[str]:
    """Starts a part of this program in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.viewers", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def processor_of(pid: int) -> float:
    """Returns the seconds of a processor that a process has had."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def answers(answerer: Answerer, at: float, first: int) -> list[float]:
    """Returns milliseconds that answers of one turn take, by the clock."""
    taken, until = [], time.monotonic() + TURN
    while time.monotonic() < until:
        first += 1
        asked = wire.encode("submit", submit(tres_per_job="gres/gpu:2", nonce=f"{first:016x}"))
        began = time.perf_counter()
        answerer.answer(asked, at)
        taken.append(1_000 * (time.perf_counter() - began))
        time.sleep(EVERY)
    return taken


def measure(folder: Path, viewers: int, turns: int) -> list[Figure]:
    """Measures turns without and with viewers."""
    made = Measured(folder, NODES)
    moment = moment_of(made.plan, made.reading)
    assert moment is not None
    overview = folder / "overview.json"
    overview.write_text(json.dumps(overview_of(moment)))
    answerer = Answerer(made.config, "0", 1)
    at = made.reading.at
    answerer.take(Snapshot(made.picture.book().cluster, frozenset(), "26.05", "bench", ""), at)
    server, writer = started("serve", str(overview)), started("write", str(overview))
    port = line_of(server)
    alone: list[float] = []
    beside: list[float] = []
    spent, moments, sizes = 0.0, 0, 0
    try:
        for turn in range(turns):
            alone += answers(answerer, at, 2 * turn << 16)
            crowd = started("watch", port, str(viewers))
            line_of(crowd)
            before = processor_of(server.pid)
            beside += answers(answerer, at, (2 * turn + 1) << 16)
            spent += processor_of(server.pid) - before
            count, size = map(int, crowd.communicate()[0].split())
            moments, sizes = moments + count, sizes + size
    finally:
        for one in (writer, server):
            one.kill()
            one.communicate()
    p99 = [statistics.quantiles(some, n=100)[98] for some in (alone, beside)]
    p50 = [statistics.median(some) for some in (alone, beside)]
    return [
        Figure("answer_p50_ms", p50[1], "ms", "no viewers", p50[0]),
        Figure("answer_p99_ms", p99[1], "ms", "no viewers", p99[0]),
        at_most("answer_p99_over_alone_ms", p99[1] - p99[0], 2.0, "ms"),
        Figure("answers", len(beside), "a side"),
        Figure("moments_of_a_viewer", moments / viewers / turns / TURN, "a second"),
        Figure("moment_kib", sizes / max(1, moments) / 1_024, "KiB"),
        Figure("server_processor", 100 * spent / turns / TURN, "% of one"),
    ]


def main() -> int:
    """Measure and show."""
    parts: dict[str, Any] = {"serve": serve, "write": write, "watch": watch}
    if sys.argv[1:] and sys.argv[1] in parts:
        parts[sys.argv[1]](*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--viewers", type=int, default=50, help="viewers (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each kind (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.viewers, args.turns)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {"viewers": str(args.viewers), "nodes": str(NODES), "load": f"{os.getloadavg()[0]:.1f}", "date": today}
    report("viewers", "answers alone, and beside viewers of the page", found, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
