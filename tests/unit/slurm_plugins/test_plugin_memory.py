# SPDX-License-Identifier: Apache-2.0
"""Ten thousand submissions and changes of every kind: the plugin keeps no byte of them, and threads do not collide."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import building
from tests.unit.plugin_whole import FAKE, SOURCES, each_slurm, sources_of

PROGRAM = FAKE.with_name("submissions.c")
CALLS = 10_000
pytestmark = [each_slurm, pytest.mark.slow, pytest.mark.timeout(600)]
WITHOUT_RANDOM_PLACES = ("setarch", "-R") if shutil.which("setarch") else ()
"""Begins a command for which TSan finds its addresses free, also on kernels that strew mappings widely."""
watched = pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="all is watched by ASan already")


def run(
    headers: Path,
    folder: Path,
    flags: Sequence[str] = (),
    under: Sequence[str] = (),
    *,
    calls: int = CALLS,
    threads: int = 1,
    **environment: str,
) -> tuple[int, int, str]:
    """Returns how many bytes more the plugin holds in the end, how many places it wrote, and what was said."""
    names = [name for key in ("JOB_SUBMIT_SRCS", "PURE") for name in sources_of(key)]
    sources = [PROGRAM, FAKE, *(SOURCES / name for name in dict.fromkeys(names))]
    # The plugin looks for slurmctld's symbols among those of the program.
    program = building.built("submissions", sources, (SOURCES, headers), ("-pthread", "-rdynamic", *flags))
    conf = folder / "berth.conf"
    conf.write_text(
        f'[hook]\nsocket = "{folder}/sock"\npinned_file = "{folder}/pinned"\ndeadline_ms = 1000\n'
        f'hook_log = "{folder}/hook.log"\n'
    )
    words = [*under, str(program), str(folder / "sock"), str(calls), str(threads)]
    done = subprocess.run(
        words, env={**os.environ, "BERTH_CONF": str(conf), **environment}, capture_output=True, text=True, check=False
    )
    found = re.search(r"bytes=(-?\d+) places=(\d+)", done.stdout)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert found, done.stdout
    return int(found[1]), int(found[2]), done.stderr


@watched
def test_no_byte_more_is_held_after_ten_thousand_calls(headers: Path, tmp_path: Path) -> None:
    more, places, _ = run(headers, tmp_path)

    assert more <= 0
    # Those of the kinds that berthd gives a place, and the first round's.
    assert places > CALLS // 4


@watched
def test_nothing_is_lost_as_asan_sees_it(headers: Path, tmp_path: Path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run(headers, tmp_path, flags, ASAN_OPTIONS="detect_leaks=1")


@watched
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_nothing_is_lost_as_valgrind_sees_it(headers: Path, tmp_path: Path) -> None:
    words = (
        "valgrind",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect,possible",
        "--error-exitcode=9",
    )
    said = run(headers, tmp_path, under=words)[2]

    assert re.search(r"definitely lost: 0 bytes|no leaks are possible", said), said[-2_000:]


@watched
def test_threads_that_submit_at_once_do_not_collide(headers: Path, tmp_path: Path) -> None:
    run(headers, tmp_path, ("-fsanitize=thread",), WITHOUT_RANDOM_PLACES, threads=4, TSAN_OPTIONS="halt_on_error=1")
