# SPDX-License-Identifier: Apache-2.0
"""A guest's memory that gives way to its host: what the library takes as managed memory, and what it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prolog_epilog.injob import word
from prolog_epilog.injob.word import OPEN, OrderPage, read_beats
from tests.fakes import cuda

pytestmark = pytest.mark.slow

MIB = 1 << 20
GIVES_WAY = {"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged"}
STAYS = {"cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuArrayCreate_v2"}
GUEST = """
from tests.fakes.cuda.program import *
Context()
result, give_back = ALLOCATIONS[sys.argv[1]](800)
print(result, flush=True)
sys.stdin.readline()
print(give_back(), flush=True)
sys.stdin.read()
"""
HOST = "Context()\nprint(ALLOCATIONS['cuMemAlloc_v2'](700)[0])"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return word.create(tmp_path / "42", [cuda.uuid(0)], os.getuid(), os.getgid())[0]


def beside(made: Path, way: str, **more: str) -> tuple[str, int, str]:
    """A guest takes 800 of 1,024 MiB in this way, then its host 700: their answers, and the guest's when it frees."""
    gpus = str(made.parent / "gpus")
    with subprocess.Popen(
        [sys.executable, "-c", GUEST, way],
        env=cuda.environment(str(made), BERTH_FAKE_CUDA_SHARED=gpus) | more,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as guest:
        assert guest.stdin is not None
        assert guest.stdout is not None
        took = guest.stdout.readline().strip()
        answer = int(cuda.run(HOST, preload=False, BERTH_FAKE_CUDA_SHARED=gpus))
        assert sum(beat.used for beat in read_beats(made)) == 800 * MIB, "the guard hears of it as before"
        guest.stdin.write("\n")
        guest.stdin.flush()
        freed = guest.stdout.readline().strip()
        assert sum(beat.used for beat in read_beats(made)) == 0
    return took, answer, freed


@pytest.mark.parametrize("way", sorted(GIVES_WAY))
def test_a_host_gets_what_its_guest_holds(made: Path, way: str) -> None:
    assert beside(made, way, BERTH_MEMORY_MANAGED="1") == ("0", 0, "0")


@pytest.mark.parametrize("way", sorted(STAYS))
def test_other_ways_to_take_memory_do_not_give_way(made: Path, way: str) -> None:
    assert beside(made, way, BERTH_MEMORY_MANAGED="1") == ("0", 2, "0")


@pytest.mark.parametrize(
    "more",
    [{}, {"BERTH_MEMORY_MANAGED": "0"}, {"BERTH_MEMORY_MANAGED": "1", "BERTH_FAKE_CUDA_MANAGED": "0"}],
    ids=["unasked", "declined", "unknown to the driver"],
)
def test_else_memory_is_taken_as_the_program_asks(made: Path, more: dict[str, str]) -> None:
    for way in ("cuMemAlloc_v2", "cuMemAllocPitch_v2"):
        assert beside(made, way, **more) == ("0", 2, "0")


def test_the_quota_counts_it(made: Path) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""
Context()
import json
answers = {{}}
for name in {sorted(GIVES_WAY)}:
    first, give_back = ALLOCATIONS[name](60)
    answers[name] = [first, ALLOCATIONS[name](60)[0], give_back(), ALLOCATIONS[name](101)[0]]
print(json.dumps(answers))
"""
    answers = json.loads(cuda.run(code, str(made), BERTH_MEMORY_MANAGED="1"))

    assert answers == {name: [0, 2, 0, 2] for name in GIVES_WAY}


def test_rows_are_padded_as_the_driver_pads_them(made: Path) -> None:
    code = """
Context()
made, pitch = c.c_uint64(), c.c_size_t()
assert call("cuMemAllocPitch_v2", c.byref(made), c.byref(pitch), 1000, 3, 4) == 0
print(pitch.value)
"""
    assert cuda.run(code, str(made), BERTH_MEMORY_MANAGED="1").strip() == "1024"
