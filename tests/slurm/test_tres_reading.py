# SPDX-License-Identifier: Apache-2.0
"""TRES requests, read by the plugin's parser and by this very Slurm's function; `make fuzz-tres` reads more of them."""

from __future__ import annotations

import pytest

from .harness import Slurm

PROGRAM = "/usr/libexec/berth-test/tres-as-slurm /usr/lib/*/slurm-wlm/libslurmfull.so"
READ = {
    "gres/gpu:2": "gpu 2",
    "gresgpu:2": "gpu 2",
    "xgres/seat:g0:1": "seat:g0 1",
    "license/gresshard:3": "shard 3",
    "gres/gpu:1080ti": "gpu:1080ti 1",
    "gres/gpu:a100:1,gres/gpu:a100:3": "gpu:a100 1 gpu:a100 3",
    "gres/gpu=a100:2": "(refused)",
    "gres/GPU:1": "GPU 1",
    "gres/5,gres/gpu:1": "",
    "gres:gpu:2": "",
    "gpu:2": "",
}
"""What Slurm reads in them; the program compares it with ours."""


@pytest.fixture(autouse=True)
def there(slurm: Slurm) -> None:
    if slurm.target.bash(f"set -- {PROGRAM}; test -x $1", check=False).rc:
        pytest.skip("this Slurm has no tres-as-slurm beside it")


def test_this_slurm_reads_as_the_parser_was_written_for(slurm: Slurm) -> None:
    done = slurm.target.run(["sh", "-c", f"exec {PROGRAM} -"], stdin="\n".join(READ))
    slurms = [line.partition("Slurm:")[2].strip() for line in done.out.splitlines() if "Slurm:" in line]
    assert dict(zip(READ, slurms, strict=True)) == READ


def test_requests_at_random_are_read_alike(slurm: Slurm) -> None:
    done = slurm.target.run(["sh", "-c", f"exec {PROGRAM} 500000 7"])
    assert "differences=0" in done.out
