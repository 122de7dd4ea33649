# SPDX-License-Identifier: Apache-2.0
"""`make coverage-c` and `make sanitize`: the unit tests of slurm_plugins/ and the fuzzer's inputs, once more.

The tests build the C files themselves. A `gcc` before the real one in PATH makes each of those builds count its lines
for gcov, or watch itself by ASan and UBSan.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.bench.table import Figure, report

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "slurm_plugins"
FOLDER = ROOT / "build" / "coverage"
UNIT = ROOT / "tests" / "unit"
TESTS = [
    str(UNIT / name) for name in ("slurm_plugins", "policy/request/test_counted.py", "policy/formats/test_pin_text.py")
]
COUNTED = str(UNIT / "slurm_plugins" / "test_plugin_work.py")
"""Builds the plugin with counters of its own, beside which others' count for nothing and take very long."""
LEAST = 90
COUNTING = f"--coverage -fprofile-update=atomic -dumpdir {FOLDER}/objects/$$- -include {FOLDER}/dump.h"
# A program that ends by _exit() would not write its counts.
DUMP = """#include <gcov.h>
#include <unistd.h>
#define _exit(status) (__gcov_dump(), _exit(status))
"""
WATCHED = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def run_tests(flags: str, **more: str) -> None:
    """The unit tests of all that is written in C here, then the fuzzer's corpus and what it has found."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    compiler = FOLDER / "bin" / "gcc"
    for folder in (FOLDER / "objects", compiler.parent):
        folder.mkdir(parents=True)
    compiler.write_text(f'#!/bin/sh\nexec env -u LD_PRELOAD {shutil.which("gcc")} "$@" {flags}\n')
    compiler.chmod(0o755)
    (FOLDER / "dump.h").write_text(DUMP)
    environment = {**os.environ, "PATH": f"{compiler.parent}:{os.environ['PATH']}", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--ignore={COUNTED}", *TESTS]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    made = FOLDER / "replay"
    sources = subprocess.run(
        ["make", "-s", "-C", "tests/fuzz", "sources"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", f"-I{SOURCES}", "-o", str(made), "replay.c", *sources]
    subprocess.run(command, cwd=ROOT / "tests" / "fuzz", env=environment, check=True)
    found = [path for folder in ("tests/fuzz/corpus", "build/fuzz/found") for path in (ROOT / folder).glob("*")]
    subprocess.run([str(made), *map(str, found)], env=environment, check=True)


def lines(objects: Path) -> Iterator[tuple[str, int, int]]:
    """File, line and how often it ran, once for each build."""
    notes = sorted(path for path in objects.glob("*.gcno"))
    for start in range(0, len(notes), 50):
        command = ["gcov", "--json-format", "--stdout", *(str(path) for path in notes[start : start + 50])]
        done = subprocess.run(command, cwd=objects, capture_output=True, text=True, check=True)
        for text in filter(None, done.stdout.splitlines()):
            content = json.loads(text)
            for file in content["files"]:
                path = (Path(content["current_working_directory"]) / file["file"]).resolve()
                if path.is_relative_to(SOURCES) and path.suffix == ".c":
                    yield from ((path.name, line["line_number"], line["count"]) for line in file["lines"])


def coverage(missing: str | None) -> int:
    """Report the lines that ran."""
    run_tests(COUNTING)
    ran: Counter[tuple[str, int]] = Counter()
    for file, line, count in lines(FOLDER / "objects"):
        ran[file, line] += count
    whole, covered = Counter(file for file, _ in ran), Counter(file for (file, _), count in ran.items() if count)
    figures = [Figure(file, 100 * covered[file] / whole[file], f"% of {whole[file]} lines") for file in sorted(whole)]
    every = 100 * covered.total() / whole.total()
    figures.append(Figure("all", every, f"% of {whole.total()} lines", must=f">= {LEAST}", good=every >= LEAST))
    never = " ".join(sorted(path.name for path in SOURCES.glob("*/*.c") if path.name not in whole))
    notes = {"in clusters alone": never, "date": f"{datetime.datetime.now(datetime.UTC):%F}"}
    report("coverage-c", "slurm_plugins/ under test", figures, notes)
    print("run by tests on a cluster alone:", never)
    if missing:
        print(*sorted(line for (file, line), count in ran.items() if file == missing and not count))
    return 0 if every >= LEAST else 1


def sanitize() -> int:
    """Run all under ASan and UBSan, which end a program at the first find."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    # Python itself leaves much behind.
    run_tests(WATCHED, LD_PRELOAD=found.stdout.strip(), ASAN_OPTIONS="detect_leaks=0")
    return 0


def main() -> int:
    """Count, or watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sanitize", action="store_true", help="watch instead of counting")
    parser.add_argument("--missing", metavar="FILE.c", help="print the lines of this file that never ran")
    arguments = parser.parse_args()
    return sanitize() if arguments.sanitize else coverage(arguments.missing)


if __name__ == "__main__":
    sys.exit(main())
