# SPDX-License-Identifier: Apache-2.0
"""What viewers of the page cost: the answers that the hook waits for, alone and beside them.

`python -m tests.bench.viewers [--viewers 50] [--turns 5]`: a made-up cluster of 1,024 nodes. One process answers a
submission every 20 ms, as berthd does. A second one is the page's server, of an overview that a third one writes anew
every second. The viewers hold event streams, and fetch each new moment, as the page does. They share the machine's
processors, with the lowest priority. To tell their own work from the page's, there are three kinds of turns of ten
seconds, in rotation: no viewers; viewers that unpack a moment as often, and ask nobody; viewers of the page.
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
from policy.serve.web.access import WebAccess
from policy.serve.web.live import LiveSource
from policy.serve.web.server import poll
from policy.site.host import give_way
from policy.site.overview import OverviewFile
from policy.site.privacy import SlurmRules
from tests.bench.scrape import Measured
from tests.bench.table import Figure, at_most, report
from tests.unit.policy.serve.web.web_world import served
from tests.unit.policy_world import submit

NODES, TURN, EVERY = 1_024, 10.0, 0.02
READ_EVERY = 5.0
"""Seconds between readings, as `berth web` has them."""


def no_job(job_id: int) -> JobText:
    """Knows no job: no viewer opens one here."""
    raise SlurmError(f"there is no job {job_id}")


def serve(overview: str) -> None:
    """Serves the page of an overview until standard input ends."""
    give_way()
    source = LiveSource(OverviewFile(Path(overview)).read, no_job, SlurmRules(lambda: {"PrivateData": "none"}, 0), dict)
    with served(source, WebAccess(), patience=1.0) as server:
        stop = threading.Event()
        threading.Thread(target=poll, args=(server.exhibit, source.read, READ_EVERY, stop), daemon=True).start()
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


def unpack(port: str, viewers: str) -> None:
    """Unpacks one moment as often as viewers of the page do, and asks nobody, until standard input ends."""
    os.nice(19)
    moment = _moment(int(port))
    for _ in range(int(viewers)):
        threading.Thread(target=_unpacks, args=(moment,), daemon=True).start()
    print("they unpack", flush=True)
    sys.stdin.read()
    print(0, 0, flush=True)


def _unpacks(moment: bytes) -> None:
    while True:
        # As told by an event: all at once.
        time.sleep(READ_EVERY - time.time() % READ_EVERY)
        json.loads(gzip.decompress(moment))


def _moment(port: int) -> bytes:
    """Returns a moment as it is sent, packed."""
    while True:
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asked.request("GET", "/api/moment", headers={"Accept-Encoding": "gzip"})
        reply = asked.getresponse()
        body = reply.read()
        asked.close()
        if reply.headers.get("Content-Encoding") == "gzip":
            return body
        time.sleep(0.1)


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


def p99_of(some: list[float]) -> float:
    """Returns the 99th percentile."""
    return statistics.quantiles(some, n=100)[98]


def measurable(name: str, some: list[float], others: list[float]) -> Figure:
    """Returns how much greater the mean of some turns is; more than two standard errors can be told from chance."""
    error = sum(statistics.variance(one) / len(one) for one in (some, others)) ** 0.5
    return at_most(name, statistics.mean(some) - statistics.mean(others), 2 * error, "ms")


def measure(folder: Path, viewers: int, turns: int) -> list[Figure]:
    """Measures turns without and with viewers."""
    made = Measured(folder, NODES)
    moment = moment_of(made.plan, made.reading)
    assert moment is not None
    overview = folder / "overview.json"
    overview.write_text(json.dumps(overview_of(moment)))
    answerer = Answerer(made.config, "0", 1)
    at = made.reading.at
    answerer.take(Snapshot(made.tracker.book().cluster, frozenset(), "26.05", "bench", ""), at)
    server, writer = started("serve", str(overview)), started("write", str(overview))
    port = line_of(server)
    taken: dict[str, list[float]] = {kind: [] for kind in ("none", "unpack", "watch")}
    p50s: dict[str, list[float]] = {kind: [] for kind in taken}
    p99s: dict[str, list[float]] = {kind: [] for kind in taken}
    spent, moments, sizes = 0.0, 0, 0
    try:
        for turn, kind in enumerate(tuple(taken) * turns):
            crowd = started(kind, port, str(viewers)) if kind != "none" else None
            if crowd is not None:
                line_of(crowd)
            before = processor_of(server.pid)
            one_turn = answers(answerer, at, turn << 16)
            taken[kind] += one_turn
            p50s[kind].append(statistics.median(one_turn))
            p99s[kind].append(p99_of(one_turn))
            if crowd is not None:
                spent += (processor_of(server.pid) - before) * (kind == "watch")
                count, size = map(int, crowd.communicate()[0].split())
                moments, sizes = moments + count, sizes + size
    finally:
        for one in (writer, server):
            one.kill()
            one.communicate()
    p50 = {kind: statistics.median(some) for kind, some in taken.items()}
    p99 = {kind: p99_of(some) for kind, some in taken.items()}
    return [
        Figure("answer_p50_ms", p50["watch"], "ms", "the same viewers, no page", p50["unpack"]),
        Figure("answer_p99_ms", p99["watch"], "ms", "the same viewers, no page", p99["unpack"]),
        Figure("answer_p50_without_viewers_ms", p50["none"], "ms"),
        Figure("answer_p99_without_viewers_ms", p99["none"], "ms"),
        measurable("page_adds_to_p50_ms", p50s["watch"], p50s["unpack"]),
        measurable("page_adds_to_p99_ms", p99s["watch"], p99s["unpack"]),
        measurable("viewers_and_page_add_to_p99_ms", p99s["watch"], p99s["none"]),
        Figure("answer_p99_of_turns_without_viewers_ms", max(p99s["none"]), "ms", "the least", min(p99s["none"])),
        Figure("answers", len(taken["watch"]), "a kind"),
        Figure("moments_of_a_viewer", moments / viewers / turns / TURN, "a second"),
        Figure("moment_kib", sizes / max(1, moments) / 1_024, "KiB"),
        Figure("server_processor", 100 * spent / turns / TURN, "% of one"),
    ]


def main() -> int:
    """Measure and show."""
    parts: dict[str, Any] = {"serve": serve, "write": write, "watch": watch, "unpack": unpack}
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
