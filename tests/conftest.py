"""For all tests: no deadline for a single example, and the fuzzer beside them, since it needs a minute and one core."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

# Two clusters and the fuzzer share the machine's cores with the examples.
settings.register_profile("berth", deadline=None)
settings.load_profile("berth")

FUZZ = Path(__file__).parent / "fuzz"
FUZZER = pytest.StashKey[subprocess.Popen[str]]()


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Start the fuzzer now and ask for its verdict last."""
    fuzz = [item for item in items if item.path.parent == FUZZ]
    if not fuzz or session.config.option.collectonly:
        return
    items[:] = [item for item in items if item not in fuzz] + fuzz
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    session.config.stash[FUZZER] = subprocess.Popen(
        ["make", "--no-print-directory", "-C", str(FUZZ), "run", f"SECONDS={seconds}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


@pytest.fixture
def fuzzer(request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    return request.config.stash[FUZZER]


def pytest_sessionfinish(session: pytest.Session) -> None:
    process = session.config.stash.get(FUZZER, None)
    if process is not None and process.poll() is None:
        process.terminate()
