# SPDX-License-Identifier: Apache-2.0
"""The MPS server process: it holds its GPUs until the daemon says quit, and outlives a daemon that is killed."""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.fakes.mps import node

CONTEXT_MIB = 30


def main(arguments: list[str]) -> int:
    """Arguments: the user to become. Standard input and output belong to the daemon."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wanted = node.settings(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    path = node.machine_file(wanted)
    with node.claimed(path) as machine:
        gpus = machine.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if any(machine.taken(gpu) for gpu in gpus):
            sys.stderr.write("Failed to start : all CUDA-capable devices are busy or unavailable\n")
            return 1
        for gpu in gpus:
            node.note(machine, gpu, os.getpid(), "compute", CONTEXT_MIB)
    time.sleep(float(wanted.get("slow_start", 0)))
    if wanted.get("server_dies"):
        return 1
    if os.geteuid() == 0 and int(arguments[0]):
        os.setgid(int(arguments[0]))
        os.setuid(int(arguments[0]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line == "quit\n":
            return 0
    # The daemon was killed: a real server stays, and so does what it holds.
    while True:
        signal.pause()
