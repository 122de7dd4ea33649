# SPDX-License-Identifier: Apache-2.0
"""Twelve tests in each cell of releases, ways to vouch for users, and kinds of nodes: `python -m tests.hard.cells`.

    python -m tests.hard.cells                                    all cells of 24.11 and 26.05
    python -m tests.hard.cells --slurm 26.05 --auth slurm --nodes dynamic
    BERTH_CLUSTER_IMAGES=mine python -m tests.hard.cells --name master --slurm 26.05 --no-build
                                                                  images of one's own, tagged as those of 26.05

Results are kept in build/cells.json, and the table of all that is there is written to docs/results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

from containers.cluster import AUTHS, KINDS_OF_NODES, PREFIX, VERSIONS

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "cells.json"
PAGE = ROOT / "docs" / "results" / "cells.md"
TESTS = {
    "place": "test_waiting.py::test_two_jobs_never_get_the_same_gpu",
    "move": "test_waiting.py::test_a_waiting_job_moves_when_it_could_start_elsewhere",
    "gang": "test_planner.py::test_a_gang_waits_for_one_leaf_to_the_second",
    "share": "test_shares.py::test_two_share_a_gpu_and_a_third_waits_until_one_ends",
    "guest": "test_guests.py::test_a_guest_sits_beside_a_host_with_a_device_and_no_gpu_in_the_books",
    "array": "test_planner.py::test_every_task_of_an_array_runs_on_its_own_planned_gpus",
    "requeue": "test_planner.py::test_a_requeued_job_is_planned_anew",
    "notice": "test_notice.py::test_berthd_hears_of_the_end_on_each_node_before_the_epilog_ends",
    "why": "test_users_port.py::test_users_ask_berthd_where_slurm_cannot_be_asked",
    "slurmctld": "test_planner.py::test_pins_outlive_a_killed_berthd_and_a_restarted_controller",
    "berthd": "test_planner.py::test_a_restart_of_the_unit_costs_no_job_its_place_nor_what_it_asked_for",
    "other GPUs": "test_other_gpus.py::test_a_node_with_other_gpus_is_slurms_until_it_is_read_again",
}
DAY = "ran on"
DOCTOR = "mkdir -p /var/lib/berth && berth doctor release"
KINDS = {"static": "static", "dynamic": "`slurmd -Z`", "cloud": "powered down"}
Results = dict[str, dict[str, str]]
HEAD = """# Releases, credentials and kinds of nodes

Twelve tests of `tests/slurm` ran in each cell. The cluster has four nodes. The command is `python -m tests.hard.cells` (2 cores, 24 GB, Debian 12). Master is Slurm's own of 2026-08-20 (26.11.0-0rc1), built by hand, and had passed `berth doctor release`.

The cells found one fault of Berth, on 24.11 and 26.05: a node that registered itself (`slurmd -Z`) after berthd's first look was in no partition for berthd, since slurmctld does not count it as a change of the partition. Now partitions are read whole (`tests/slurm/test_nodes_that_join.py`). All cells below ran with that mended, but the static ones of 24.11 and 26.05 with auth/slurm. One cell had failed by the tests' harness, which powered down a node that slept already: Slurm then puts it to sleep again as soon as it is up.

"""  # noqa: E501 - a page's paragraph is one line


def main() -> int:
    """Runs the cells that are named, and writes the table."""
    parser = argparse.ArgumentParser(description="Twelve tests in each cell.")
    parser.add_argument("--slurm", nargs="*", choices=VERSIONS, default=VERSIONS)
    parser.add_argument("--auth", nargs="*", choices=AUTHS, default=AUTHS)
    parser.add_argument("--nodes", nargs="*", choices=KINDS_OF_NODES, default=KINDS_OF_NODES)
    parser.add_argument("--name", default="", help="of a release in images of one's own")
    parser.add_argument("--no-build", action="store_true", help="take the images as they are")
    options = parser.parse_args()
    results: Results = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for slurm in options.slurm:
        for auth in options.auth:
            for nodes in options.nodes:
                name = f"{options.name or slurm} {auth} {nodes}"
                found = cell(slurm, auth, nodes, more=["--no-build"] if options.no_build else [])
                print(f"cells: {name}: {summary(found)}", flush=True)
                results[name] = {**found, DAY: time.strftime("%Y-%m-%d")}
                KEPT.write_text(json.dumps(results, indent=1))
    PAGE.write_text(page(results))
    return 0


def cell(slurm: str, auth: str, nodes: str, more: Sequence[str]) -> dict[str, str]:
    """Runs the tests on a cluster of its own: by test `passed`, `failed` or why it did not run."""
    cluster = [sys.executable, str(ROOT / "containers" / "cluster.py")]
    words = ["--slurm", slurm, "--auth", auth, "--nodes", nodes, "--time-limit", "240", *more]
    report = KEPT.with_name("cells.xml")
    report.unlink(missing_ok=True)
    try:
        if subprocess.run([*cluster, "up", *words], check=False).returncode:
            return dict.fromkeys(TESTS, "no cluster")
        controller = f"{PREFIX}{slurm.replace('.', '')}-ctl"
        # On a release that was not tried yet, berthd leaves all jobs to Slurm until this has passed.
        subprocess.run(["docker", "exec", controller, "sh", "-c", DOCTOR], check=False, capture_output=True)
        ids = [f"tests/slurm/{one}" for one in TESTS.values()]
        environment = {**os.environ, "BERTH_TEST_SLURM": controller}
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *ids]
        with (KEPT.with_name(f"cells-{slurm}-{auth}-{nodes}.log")).open("w") as log:
            subprocess.run(pytest, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
        return outcomes(report)
    finally:
        subprocess.run([*cluster, "down", "--slurm", slurm], check=False)


def outcomes(report: Path) -> dict[str, str]:
    """Reads what pytest reported."""
    found = dict.fromkeys(TESTS, "did not run")
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()  # noqa: S314 - pytest's own file
    for case in cases:
        test = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name', '').partition('[')[0]}"
        for name, wanted in TESTS.items():
            if wanted == test:
                found[name] = next((one.tag for one in case if one.tag in {"failure", "error", "skipped"}), "passed")
    return found


def summary(results: Mapping[str, str]) -> str:
    """Counts what passed, and names the others."""
    others = [f"{name} ({outcome})" for name, outcome in results.items() if outcome != "passed"]
    return f"{len(results) - len(others)} of {len(results)} passed" + (f"; not: {', '.join(others)}" if others else "")


def page(results: Results) -> str:
    """Returns the table as a page."""
    head = f"| cell | {DAY} | {' | '.join(TESTS)} |\n|{'---|' * (len(TESTS) + 2)}\n"
    rows = ""
    for release, auth, nodes in product(sorted({*VERSIONS, "master"}), AUTHS, KINDS):
        found = results.get(f"{release} {auth} {nodes}", {DAY: "not run"})
        marks = [found[DAY], *("yes" if found.get(name) == "passed" else found.get(name, "-") for name in TESTS)]
        rows += f"| {release}, {auth}, {KINDS[nodes]} | {' | '.join(marks)} |\n"
    return HEAD + head + rows


if __name__ == "__main__":
    sys.exit(main())
