"""`make coverage`: which lines of our Python the unit tests run, also in the programs that they start.

A .pth file in the environment starts coverage.py in every process of its interpreter, whatever environment that process
was given. It is there while this runs. What has no interpreter of ours, or is killed, is not counted.

usage: python -m tests.bench.coverage [words for pytest]
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from coverage import Coverage

from tests.bench.table import Figure, at_least, report

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "coverage-python"
DATA = FOLDER / "data"
PTH = Path(sysconfig.get_path("purelib")) / "berth_coverage.pth"
#: Percent of lines, in all and, to be named, of one file.
MUST, LOW = 93.0, 85.0
#: Runs at the start of every process; the variables are gone before the program begins.
START = (
    "import os, coverage; "
    f"os.environ.update(COVERAGE_PROCESS_START={str(ROOT / 'pyproject.toml')!r}, COVERAGE_FILE={str(DATA)!r}); "
    "coverage.process_startup(); "
    "del os.environ['COVERAGE_PROCESS_START'], os.environ['COVERAGE_FILE']\n"
)


def run_tests(words: list[str]) -> int:
    """Run the unit tests with coverage.py in each of their processes."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    # Programs that give up root's rights write here too.
    FOLDER.chmod(0o1777)
    command = ["nice", "-n", "10", sys.executable, "-m", "pytest", *(words or ["tests/unit", "-n", "auto"]), "-q"]
    command += [f"--junitxml={FOLDER / 'took.xml'}"]
    PTH.write_text(START, encoding="utf-8")
    try:
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        PTH.unlink()


def percents() -> dict[str, tuple[int, int]]:
    """Lines run and lines there are, by file."""
    os.chdir(ROOT)
    measured = Coverage(data_file=str(DATA), config_file=str(ROOT / "pyproject.toml"))
    measured.combine([str(FOLDER)])
    measured.save()
    found = FOLDER / "lines.json"
    measured.json_report(outfile=str(found))
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


def main(words: list[str]) -> int:
    """Run, count, report."""
    failed = run_tests(words)
    made = figures(percents())
    notes = {"python": sys.version.split()[0], "date": dt.datetime.now(dt.UTC).date().isoformat()}
    report("coverage", "Lines that the unit tests run", made, notes)
    return failed or int(not made[0].good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
