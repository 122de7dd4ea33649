# SPDX-License-Identifier: Apache-2.0
"""`make mutants`: how many small changes of the code that decides the unit tests notice.

Each change runs in a process of its own, which loads the changed file instead of the one on disk, with the tests that
ran the changed line under `make coverage`, the quickest first. For a constant these are the tests that ran a line with
its name. Programs that tests start run the file on disk, so what only they do counts as unnoticed.

usage: python -m tests.bench.mutants [--sample N] [--few N] [--seed N] [--constants] [--lines FIRST-LAST] [FILE ...]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import resource
import signal
import sqlite3
import sys
import time
import traceback
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import ModuleType

import hypothesis
import numpy as np  # noqa: F401 - once for all processes
import pytest
from coverage.numbits import numbits_to_nums

from tests.bench.coverage import DATA, FOLDER, ROOT
from tests.bench.mutator import Mutant, mutants
from tests.bench.table import Figure, at_least, report
from tests.reach import names

FOLDERS = ("policy", "topology", "prolog_epilog")
"""All files of these are drawn from."""
MUST = 80.0
LOG = ROOT / "build" / "mutant.log"
"""What pytest said of the last change."""
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
#: Seconds that the tests of one change took under coverage, at most; the slowest are left out.
ENOUGH_TESTS_S = 60.0
SLOWER = 4.0
"""A change may need so many times the processor time that its tests needed without it."""


class Tests:
    """Which tests ran which line, and how long they took."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, set[str]]] = {}
        with contextlib.closing(sqlite3.connect(DATA)) as data:
            rows = data.execute(
                "SELECT path, context, numbits FROM line_bits JOIN file ON file.id = file_id "
                "JOIN context ON context.id = context_id WHERE context LIKE 'tests.%'"
            )
            # A file may have moved since.
            for path, context, bits in (row for row in rows if (ROOT / row[0]).exists()):
                lines = self._lines.setdefault(path, defaultdict(set))
                for line in numbits_to_nums(bits):
                    lines[line].add(context)
        self.took: dict[str, float] = defaultdict(float)
        took = (ET.parse(one) for one in FOLDER.glob("took-*.xml"))  # noqa: S314 - pytest wrote them
        for case in chain.from_iterable(one.iter("testcase") for one in took):
            name = f"{case.get('classname')}.{(case.get('name') or '').partition('[')[0]}"
            if case.find("skipped") is None and case.find("failure") is None:
                self.took[name] += float(case.get("time") or 0.0)

    def of(self, path: str, mutant: Mutant) -> list[str]:
        """The tests for a change, the quickest first."""
        # A constant's own line runs once, in whatever test imports the file first.
        mine = self._lines.get(path, {})
        found = set[str]() if mutant.names else set(mine.get(mutant.line, ()))
        if mutant.names:
            word = re.compile(rf"\b({'|'.join(mutant.names)})\b")
            for other, lines in self._lines.items():
                text = (ROOT / other).read_text(encoding="utf-8").splitlines()
                at = {i for i, line in enumerate(text, 1) if word.search(line)} - (
                    {mutant.line} if other == path else set()
                )
                found.update(*(lines[i] for i in at & lines.keys()))
        found = found or set().union(*mine.values()) or self._of_importers(path)
        chosen, seconds = list[str](), 0.0
        for name in sorted(found & self.took.keys(), key=lambda one: (self.took[one], one)):
            seconds += self.took[name]
            if chosen and seconds > ENOUGH_TESTS_S:
                break
            chosen.append(name)
        return chosen

    def _of_importers(self, path: str) -> set[str]:
        """The tests that ran a file which imports this one: of a file of constants they are all that there are."""
        word = names(path)
        importers = (other for other in self._lines if word.search((ROOT / other).read_text(encoding="utf-8")))
        return set[str]().union(*chain.from_iterable(self._lines[other].values() for other in importers))

    def running(self, path: str) -> list[str]:
        """The tests that ran any line of a file, the quickest first."""
        found = set[str]().union(*self._lines.get(path, {}).values())
        return sorted(found, key=lambda one: (self.took.get(one, 0.0), one))


def by_folder() -> dict[str, list[str]]:
    """All files by folder: `topology`, `policy/plan`, ...; what is deeper belongs to the folder above it."""
    found = defaultdict(list)
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            found["/".join(parts[: min(2, len(parts) - 1)])].append("/".join(parts))
    return found


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed text."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._name = path.removesuffix(".py").replace("/", ".")

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Of the changed module alone."""
        del path, target
        return importlib.util.spec_from_loader(name, self, origin=self._path) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed text."""
        module.__file__ = str(ROOT / self._path)
        exec(compile(self._source, self._path, "exec"), module.__dict__)  # noqa: S102


class _Quickly:
    """Hypothesis draws the same examples each time and does not shrink what it finds."""

    def pytest_configure(self) -> None:
        """After the profile of tests/conftest.py."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", phases=phases, database=None, derandomize=True)
        hypothesis.settings.load_profile("mutants")


def run(path: str, source: bytes, names: Sequence[str], cpu_s: float) -> str:
    """`killed`, `survived` or `timeout`: what the tests say of a changed file, in a process of its own."""
    child = os.fork()
    if not child:
        status = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
            with LOG.open("wb") as log:
                for file in (1, 2):
                    os.dup2(log.fileno(), file)
            sys.meta_path.insert(0, _Changed(path, source))
            words = [node_id(name) for name in names]
            status = pytest.main([*OPTIONS, *words], [_Quickly()])
        except BaseException:  # noqa: BLE001 - nothing of it may go on in the parent's place
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline = time.monotonic() + 20 * cpu_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
        return "timeout"
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL} else "killed"
    # Where a changed module cannot be imported pytest finds none of the tests that it was told, and says so.
    if os.WEXITSTATUS(status) in {pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(f"the tests of {path} could not be run, see {LOG}")
    return "killed" if os.WEXITSTATUS(status) else "survived"


def node_id(name: str) -> str:
    """Names a test as pytest does: tests.unit.policy.test_a.test_it becomes tests/unit/policy/test_a.py::test_it."""
    parts = name.split(".")
    file = next(i for i in range(len(parts), 0, -1) if (ROOT / "/".join(parts[:i])).with_suffix(".py").exists())
    return "::".join(["/".join(parts[:file]) + ".py", *parts[file:]])


def check(path: str, chosen: Iterable[Mutant], tests: Tests) -> Counter[str]:
    """Run some changes of one file, tell each that nobody noticed, and count."""
    source, count = (ROOT / path).read_bytes(), Counter[str]()
    for mutant in chosen:
        names = tests.of(path, mutant)
        cpu_s = 20.0 + SLOWER * sum(tests.took[name] for name in names)
        result = run(path, mutant.apply(source), names, cpu_s) if names else "survived"
        count[result] += 1
        if result != "killed":
            change = f"{' '.join(mutant.before.split())[:60]} -> {' '.join(mutant.text.split())[:60]}"
            print(f"{path}:{mutant.line}: {result} {len(names)} tests: {change}", flush=True)
    return count


def main() -> int:
    """Check a sample of each folder, or of each file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=40, help="changes of each folder or FILE, by the seed; 0: all")
    parser.add_argument("--few", type=int, default=0, metavar="N", help="draw from N files of each folder; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--constants", action="store_true", help="only what is assigned outside functions")
    parser.add_argument("--lines", default="1-100000", help="FIRST-LAST")
    parser.add_argument("files", nargs="*", metavar="FILE")
    asked = parser.parse_args()
    os.chdir(ROOT)
    os.nice(19)
    os.environ["BERTH_EXAMPLES"] = "0.2"
    tests, counts, failed = Tests(), dict[str, Counter[str]](), False
    first, last = map(int, asked.lines.split("-"))
    groups = {path: [path] for path in asked.files} or by_folder()
    for name, paths in groups.items():
        # The tests of each file are run once without a change, which takes time.
        few = _few(paths, asked.few, random.Random(f"{asked.seed}/files of {name}")) if asked.few else paths
        every = [(path, one) for path in few for one in mutants((ROOT / path).read_bytes())]
        every = [(path, one) for path, one in every if first <= one.line <= last and (one.names or not asked.constants)]
        drawn = random.Random(f"{asked.seed}/{name}").sample(every, min(asked.sample or len(every), len(every)))
        count = Counter[str]()
        for path in sorted({path for path, _ in drawn}):
            chosen = [one for other, one in drawn if other == path]
            reached = sorted({n for m in chosen for n in tests.of(path, m)})
            ready = run(path, (ROOT / path).read_bytes(), reached, 600.0) if reached else "survived"
            if ready != "survived":
                print(f"{path}: left out, its tests fail without a change ({ready})", flush=True)
                failed = True
                continue
            count += check(path, sorted(chosen, key=lambda one: one.start), tests)
        print(f"{name}: {dict(count)} of {len(every)}", flush=True)
        if count:
            counts[name] = count
    figures = shares(counts)
    notes = {"seed": str(asked.seed), "sample": str(asked.sample), "python": sys.version.split()[0]}
    notes["date"] = dt.datetime.now(dt.UTC).date().isoformat()
    report("mutants", "Changes that the unit tests notice", figures, notes)
    return int(failed or not all(one.good for one in figures))


def _few(paths: Iterable[str], count: int, draw: random.Random) -> list[str]:
    """Draws some files, each as often as it has changes."""
    changes = {path: len(mutants((ROOT / path).read_bytes())) for path in paths}
    chosen = list[str]()
    while len(chosen) < count and any(changes.values()):
        chosen += draw.choices(list(changes), list(changes.values()))
        changes[chosen[-1]] = 0
    return sorted(chosen)


def shares(counts: Mapping[str, Counter[str]]) -> list[Figure]:
    """The share that was noticed in each folder, in all folders of `policy` and the like, and in all."""
    parts = defaultdict[str, Counter[str]](Counter)
    for name, count in counts.items():
        parts[name.partition("/")[0]] += count
    made = [_figure(name, count) for name, count in counts.items()]
    made += [_figure(f"all of {part}", count) for part, count in parts.items()]
    return [*made, _figure("all", sum(parts.values(), Counter()))]


def _figure(name: str, count: Counter[str]) -> Figure:
    noticed, all_of_them = count["killed"] + count["timeout"], max(1, count.total())
    unit = f"% of {count.total()} ({count['timeout']} by time)"
    return at_least(name, 100 * noticed / all_of_them, MUST, unit)


if __name__ == "__main__":
    sys.exit(main())
