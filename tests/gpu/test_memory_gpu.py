# SPDX-License-Identifier: Apache-2.0
"""On a real GPU: an owner that allocates where its guest has taken the memory, plain and managed; needs gcc."""

from __future__ import annotations

import os
import subprocess
import sys

import pynvml
import pytest

from tests.all import ROOT
from tests.fakes import cuda

pytestmark = pytest.mark.gpu

CLIENT = [sys.executable, "-m", "tests.gpu.client", "fill"]
GUEST_S, OWNER_S = 12, 4


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), **more}


@pytest.mark.parametrize("managed", [False, True], ids=["plain", "managed"])
def test_an_owner_that_asks_for_more_than_its_guest_leaves(*, managed: bool) -> None:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = int(pynvml.nvmlDeviceGetMemoryInfo(device).total) >> 20
    more = {"LD_PRELOAD": str(cuda.injob_library()), **({"BERTH_MEMORY_MANAGED": "1"} if managed else {})}

    with subprocess.Popen(
        [*CLIENT, str(total * 3 // 4), str(GUEST_S)], env=environment(**more), stdout=subprocess.PIPE, text=True
    ) as guest:
        assert guest.stdout is not None
        assert guest.stdout.readline().strip() == "filled"
        owner = subprocess.run(
            [*CLIENT, str(total // 2), str(OWNER_S)], env=environment(), capture_output=True, text=True, check=False
        )
        print("free when the owner has ended:", pynvml.nvmlDeviceGetMemoryInfo(device).free >> 20, "of", total, "MiB")
        rounds = guest.stdout.readline()
        print("the guest's rounds a second, and the milliseconds of each:", rounds)
    print("the owner:", owner.returncode, owner.stdout, owner.stderr)

    assert guest.returncode == 0, "the guest goes on"
    assert (owner.returncode == 0) is managed
