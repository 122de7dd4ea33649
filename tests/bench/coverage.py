# SPDX-License-Identifier: Apache-2.0
"""`make coverage`: which lines of our Python the unit tests run, also in the programs that they start.

A .pth file in the environment starts coverage.py in every process of its interpreter, whatever environment that process
was given. It is there while this runs. What has no interpreter of ours, or is killed, is not counted.

The folders of tests run one after the other, since each process leaves a file and those of a folder are put together
before the next. The tests are those of `make test` that need no cluster.

On a machine that others use too, `--quick` writes nothing into the environment: one process runs the tests that are not
slow, and the programs that they start are not counted. `make mutants` and `python -m tests.reach` need no more.

usage: python -m tests.bench.coverage [--keep] [--quick] [folder ...]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from coverage import Coverage

from tests.bench.table import Figure, at_least, report

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "coverage-python"
DATA = FOLDER / "data"
PTH = Path(sysconfig.get_path("purelib")) / "berth_coverage.pth"
WHICH = "not hard and not published and not torch"
#: Percent of lines, in all and, to be named, of one file.
MUST, LOW = 93.0, 85.0
#: Runs at the start of every process; the variables are gone before the program begins.
START = (
    "import os, coverage; "
    f"os.environ.update(COVERAGE_PROCESS_START={str(ROOT / 'pyproject.toml')!r}, COVERAGE_FILE={str(DATA)!r}); "
    "coverage.process_startup(); "
    "del os.environ['COVERAGE_PROCESS_START'], os.environ['COVERAGE_FILE']\n"
)


def folders() -> list[str]:
    """Returns the folders of tests, small enough that one says soon how it went."""
    policy = sorted((ROOT / "tests/unit/policy").glob("[a-z]*/"))
    others = sorted(one for one in (ROOT / "tests/unit").glob("[a-z]*/") if one.name not in {"policy", "data"})
    return [str(one.relative_to(ROOT)) for one in (*policy, *others, ROOT / "tests/world")]


def measured() -> Coverage:
    """Returns what has been put together so far."""
    made = Coverage(data_file=str(DATA), config_file=str(ROOT / "pyproject.toml"))
    made.load()
    return made


def run_tests(folder: str, *, quick: bool) -> bool:
    """Runs the tests of a folder with coverage.py in each of their processes; tells whether all passed."""
    took = FOLDER / f"took-{folder.replace('/', '-')}.xml"
    command = ["-m", "pytest", folder, "-m", WHICH, "-n", "auto", "-q", f"--junitxml={took}"]
    environment = None
    if quick:
        inside = ["-m", "coverage", "run", f"--rcfile={ROOT / 'pyproject.toml'}"]
        command = [*inside, *command[:3], "-m", f"{WHICH} and not slow", "-n", "0", *command[7:]]
        environment = {**os.environ, "COVERAGE_FILE": str(DATA), "BERTH_EXAMPLES": "0.2"}
    command = ["nice", "-n", "10", sys.executable, *command]
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    lines = measured()
    # The first part may have left nothing to add to.
    if any(FOLDER.glob(f"{DATA.name}.*")):
        lines.combine([str(FOLDER)])
        lines.save()
    return ended in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def run(chosen: list[str], *, keep: bool, quick: bool) -> list[str]:
    """Runs the folders one after the other; returns those that failed."""
    if not keep:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Programs that give up root's rights write here too.
    FOLDER.chmod(0o1777)
    if not quick:
        PTH.write_text(START, encoding="utf-8")
    failed = list[str]()
    try:
        for number, folder in enumerate(chosen, 1):
            print(f"coverage: {folder} ({number} of {len(chosen)})", flush=True)
            failed += [] if run_tests(folder, quick=quick) else [folder]
    finally:
        if not quick:
            PTH.unlink()
    return failed


def percents() -> dict[str, tuple[int, int]]:
    """Lines run and lines there are, by file."""
    os.chdir(ROOT)
    found = FOLDER / "lines.json"
    measured().json_report(outfile=str(found))
    files = json.loads(found.read_text(encoding="utf-8"))["files"]
    return {
        name: (one["summary"]["covered_lines"], one["summary"]["num_statements"])
        for name, one in files.items()
        if one["summary"]["num_statements"]
    }


def figures(files: dict[str, tuple[int, int]]) -> list[Figure]:
    """All, by package, and every file that is low."""

    def part(prefix: str) -> float:
        ours = [lines for name, lines in files.items() if name.startswith(prefix)]
        return 100 * sum(ran for ran, _ in ours) / sum(there for _, there in ours)

    made = [at_least("all", part(""), MUST, "% of lines")]
    made += [Figure(name, part(f"{name}/"), "% of lines") for name in ("policy", "prolog_epilog", "topology")]
    low = {name: 100 * ran / there for name, (ran, there) in files.items() if 100 * ran < LOW * there}
    return made + [Figure(name, low[name], "% of lines") for name in sorted(low, key=low.__getitem__)]


def main() -> int:
    """Run, count, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="add to what earlier runs have left")
    parser.add_argument("--quick", action="store_true", help="tests that are not slow, without the programs they start")
    parser.add_argument("folders", nargs="*", metavar="folder")
    asked = parser.parse_args()
    failed = run(asked.folders or folders(), keep=asked.keep, quick=asked.quick)
    made = figures(percents())
    notes = {"python": sys.version.split()[0], "date": dt.datetime.now(dt.UTC).date().isoformat()}
    report("coverage", "Lines that the unit tests run", made, notes)
    for folder in failed:
        print(f"coverage: tests failed in {folder}")
    return int(bool(failed) or not made[0].good)


if __name__ == "__main__":
    # Else what starts coverage.py in every process would stay in the environment.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
