# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboards on a real Prometheus: each query runs, and each panel's finds something to show."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from policy.serve.metrics.access import Access
from policy.serve.metrics.endpoints import MetricsServer, MetricsSite
from policy.serve.metrics.families import Sources
from policy.serve.metrics.hook_calls import HookCalls
from policy.site.metrics_state import read_metrics
from policy.site.privacy import SlurmRules
from prolog_epilog.guard.seats import metrics as guard_metrics
from prolog_epilog.node import cgroups
from tests.bench.scrape import Measured
from tests.real.packages import PROMETHEUS, unpacked
from tests.unit.guard_world import World
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "berth.rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
STATUS = {"version": "0.1.0", "slurm": "26.05", "gateway": "libslurm", "snapshot_age_ms": "900", "placed": "7"}

pytestmark = pytest.mark.slow


def program(name: str) -> str:
    """Its path; the test is skipped where it cannot be had."""
    if found := shutil.which(name):
        return found
    folder = unpacked(PROMETHEUS)
    if isinstance(folder, str):
        pytest.skip(f"Prometheus cannot be had: {folder}")
    return str(folder / "usr" / "bin" / name)


def panels_of(path: Path) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return panels


def queries_of(path: Path) -> list[str]:
    return [target["expr"] for panel in panels_of(path) for target in panel["targets"]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def guard_text(folder: Path) -> str:
    """Returns the metrics that a guard writes of an owner and its guest, on a simulated node."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(folder)
        programs = world.programs
        patch.setattr(
            cgroups, "job_of", lambda pid: next((one.job for one in programs.values() if one.process.pid == pid), None)
        )
        try:
            world.comes(1, "guaranteed", step=0.4)
            world.seconds(20)
            world.comes(7, "opportunistic", step=0.2)
            world.seconds(60)
            shares = {(3, "GPU-3", "server-ceiling"): 2}
            return guard_metrics.text(list(world.keeper.seats.values()), shares, 0.05)
        finally:
            world.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Prometheus that scrapes berthd's server and a guard's text."""
    command, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    (folder / "guard").mkdir()
    guard = guard_text(folder / "guard") + f'node_textfile_mtime_seconds{{file="/x/berth.prom"}} {time.time()}\n'
    cluster = Measured(folder, 64)
    cluster.write()
    state, hook = read_metrics(cluster.file.read_bytes()), HookCalls(folder / "hook.log")
    site = MetricsSite(
        Access(SlurmRules(lambda: {"PrivateData": "none"}, 0), None), lambda: Sources(state, STATUS, hook), 0
    )

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(guard.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    servers = [MetricsServer(site, "127.0.0.1", 0, hook.look), ThreadingHTTPServer(("127.0.0.1", 0), Node)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.2,)) for server in servers]
    for thread in threads:
        thread.start()
    # The file that ships, on the ports of this test.
    text = (DEPLOY / "prometheus" / "berth.scrape.yml").read_text().replace("15s", "500ms")
    text = text.replace("ctl1:6828", f"127.0.0.1:{servers[0].server_address[1]}")
    text = text.replace("n1:9100", f"127.0.0.1:{servers[1].server_address[1]}")
    (folder / "prometheus.yml").write_text(f"global: {{scrape_timeout: 500ms, evaluation_interval: 1s}}\n{text}")
    shutil.copy(RULES, folder)
    port = free_port()
    words = [command, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        until("two scrapes of every page", lambda: scraped(port, folder / "hook.log"), every=0.5)
        yield port
    finally:
        process.terminate()
        process.wait(20)
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
        hook.close()


def scraped(port: int, hook_log: Path) -> bool:
    with hook_log.open("a") as log:
        log.write("1.0\t900\tplace\t0\n1.0\t50000\ttimeout\t0\n")
    try:
        found = ask(port, "min(count_over_time(up[1m])) >= 3 and min(up) == 1")
        return bool(found) and bool(ask(port, "sum(rate(berth_hook_calls_total[1m])) > 0"))
    except OSError:
        return False


def ask(port: int, query: str) -> list[Any]:
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(address, timeout=20) as answer:
        told = json.load(answer)
    assert told["status"] == "success"
    result: list[Any] = told["data"]["result"]
    return result


@pytest.mark.parametrize("path", DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def test_each_panel_has_something_to_show(path: Path, prometheus: int) -> None:
    for query in queries_of(path):
        asked = query.replace("$__rate_interval", "1m").replace("$model", ".*")
        assert "$" not in asked
        # A scrape that came too late leaves its series empty until the next one.
        until(f"an answer to {query}", partial(ask, prometheus, asked))


def test_each_alert_can_be_asked_for_and_the_rules_are_loaded(prometheus: int) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        ask(prometheus, rule["expr"])
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/rules", timeout=20) as answer:
        loaded = json.load(answer)["data"]["groups"]
    assert sum(len(group["rules"]) for group in loaded) == sum(len(group["rules"]) for group in groups)


def test_rules_and_alerts_are_right_by_promtool() -> None:
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(ROOT / "tests" / "real" / "berth.test.yml")]):
        done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_have_the_shape_that_grafana_reads() -> None:
    assert len(DASHBOARDS) == 5
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 5
    for board in boards:
        assert board["schemaVersion"] >= 36
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            assert panel["type"] in {"timeseries", "stat", "table", "bargauge"}
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert max(x for x, _ in cells) < 24
            assert taken.isdisjoint(cells)
            taken |= cells
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        variables = {one["name"] for one in board["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(board["panels"])))
        assert used <= variables
