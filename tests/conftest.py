# SPDX-License-Identifier: Apache-2.0
"""For all tests: no deadline for a single example, since clusters and other tests share the machine's cores with it."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import SEED, examples
from tests.told import difference
from tests.unit.plugin_whole import NO_HEADERS

MEMORY = Path("/dev/shm")
ROOM = 2 << 30


def in_memory() -> bool:
    """Whether temporary files, programs among them, may be kept in memory: a disk makes some ten times slower."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= ROOM


if in_memory():
    # Also for those whom tests start.
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Tests make files for processes of other users; what Berth itself makes under another umask has tests of its own.
os.umask(0o022)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Has Hypothesis draw by this run's seed too."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the garbage collector from what is collected: thousands of tests, which it would look through each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts first what takes long where processes share the tests: else one waits at the end for another."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Shows where bytes part, in words: "at index 343" tells nobody what was wanted."""
    return difference(left, right) if op == "==" and isinstance(left, bytes) and isinstance(right, bytes) else None


def pytest_report_header() -> str:
    """Tells what repeats this run's samples."""
    return f"samples: BERTH_SEED={SEED}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Tells last, in one line, what a checkout that never had an image does not run."""
    yield
    skipped = [one for one in terminalreporter.getreports("skipped") if NO_HEADERS in str(one.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"not run: {len(skipped)} tests of the whole job_submit plugin, each for every Slurm: {NO_HEADERS}"
        )


settings.register_profile("berth", deadline=None, max_examples=examples(100))
settings.load_profile("berth")
