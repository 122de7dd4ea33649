# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=scrape`: how long a scrape of berthd's metrics takes, and what it costs the other processes.

A whole scrape is all five pages, over a real socket of the server that berthd starts, from a state file that the
planner's code wrote. The state is new for each scrape, so that nothing comes out of a cache. What a scrape must not
exceed is its time of a processor, reader and server together: beside other work the clock says more about that work.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import os
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from policy.cluster.fleet import Fleet
from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.cluster_state import StateMaker
from policy.daemon.passes.handover import Snapshot
from policy.daemon.passes.overviews import OverviewWriter
from policy.formats import wire
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.serve.metrics.endpoints import make_server
from policy.serve.metrics.families import PAGES
from policy.serve.status import BerthdStatus
from policy.site import ask
from policy.site.config import Config, MetricsOptions
from policy.site.overview import path_of
from policy.site.privacy import SlurmRules

from .plan import World
from .table import Figure, at_most, report

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SLOW_PART = 0.03
"""Part of the GPUs that are slow for an application class."""


class Measured:
    """One cluster: its plan, its state file and its server."""

    def __init__(self, folder: Path, nodes: int) -> None:
        world = World(nodes, 1_000)
        self.fleet = with_scores(world.fleet())
        self.reading = world.reading()
        self.tracker, self.plan = Tracker(self.fleet), Plan(BerthPolicy(), Settings())
        self.tracker.update(self.reading)
        self.plan.replan(self.tracker.book(), self.reading.jobs)
        self.config = Config(pinned_file=folder / "pinned", metrics=MetricsOptions(enabled=True, port=0))
        self.socket = folder / "berthd.sock"
        self.file = path_of(self.socket)
        self.maker, self.writer = StateMaker(job_info=False), OverviewWriter(self.file)
        self.write()

    def write(self) -> float:
        """Milliseconds of a processor that one state costs the planner, beside an overview that is not due."""
        began = time.process_time()
        self.maker.make(self.reading, self.tracker.book().cluster, self.plan.queue, {}, {}, {})
        self.writer.write_if_due(self.plan, self.reading, self.maker.latest)
        self.writer.close()
        return 1_000 * (time.process_time() - began)

    def scrapes(self, count: int) -> tuple[list[float], list[float], int]:
        """Milliseconds of whole scrapes, by the clock and of a processor, and the bytes of a scrape."""
        rules = SlurmRules(lambda: {"PrivateData": "none"}, 0)
        server = make_server(self.config, rules, BerthdStatus(lambda: ask.status(self.socket)), self.file)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        clock, processor, size = [], [], 0
        try:
            for _ in range(count):
                self.write()
                began, spent = time.perf_counter(), time.process_time()
                size = sum(len(get(server.server_address[1], f"/metrics/{page}")) for page in PAGES)
                clock.append(1_000 * (time.perf_counter() - began))
                processor.append(1_000 * (time.process_time() - spent))
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        return clock, processor, size

    def status(self, count: int) -> float:
        """Milliseconds of a processor that the answering process spends on the question for its counters."""
        answerer = Answerer(self.config, "0", 1)
        cluster = self.tracker.book().cluster
        answerer.take(Snapshot(cluster, frozenset(), "26.05", "bench", ""), self.reading.at)
        question = wire.encode("status", {})
        taken = []
        for _ in range(count):
            began = time.process_time()
            answerer.answer(question, self.reading.at)
            taken.append(1_000 * (time.process_time() - began))
        return statistics.median(taken)


def with_scores(fleet: Fleet) -> Fleet:
    """Scores of three application classes, some of them slow."""
    draw = np.random.default_rng(1)
    shape = (len(fleet.names), 8)
    scores = {name: np.where(draw.random(shape) < SLOW_PART, 1.2, 1.0) for name in ("compute", "mixed", "memory")}
    return replace(fleet, scores=scores)


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": OPENMETRICS})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--scrapes", type=int, default=20)
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for label, nodes in (("8192", 1_024), ("100k", 12_500)):
            one = Measured(Path(folder), nodes)
            clock, processor, size = one.scrapes(arguments.scrapes)
            spent = statistics.median(processor)
            figures += [
                at_most(f"scrape_{label}_cpu_ms", spent, 50.0 if label == "8192" else 500.0, "ms"),
                Figure(f"scrape_{label}_ms", statistics.median(clock), "ms"),
                Figure(f"scrape_{label}_best_ms", min(clock), "ms"),
                Figure(f"scrape_{label}_kib", size / 1_024, "KiB"),
                Figure(f"planner_{label}_cpu_ms", statistics.median(one.write() for _ in clock), "ms"),
                Figure(f"answerer_{label}_cpu_ms", one.status(500), "ms"),
            ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {"scrapes": str(arguments.scrapes), "load": f"{os.getloadavg()[0]:.1f}", "date": today}
    report("scrape", "a scrape of all pages; the planner's and the answering process's part", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
