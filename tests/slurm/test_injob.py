# SPDX-License-Identifier: Apache-2.0
"""Inside jobs on the real Slurm: hooks and library come before the user's own, and the guard hears and holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from .harness import Slurm, until
from .nodes import Node, assert_nothing_left, berth_conf, nodes_of, output
from .test_guests import all_nodes, occupy, seat

pytestmark = pytest.mark.any_slurm

MINE = ":/home/tests/a b:"
"""A user's own PYTHONPATH, with all that one may hold."""
HOOKS, LIBRARY = "/usr/share/berth/injob", "/usr/lib/berth/libberth_injob.so"

# Steps twenty times a second, as soon as the file that it is told of exists, and says what it sees of its order
# whenever that has changed: from beside the gate, which holds the steps for as long as it is shut.
STEPS = """
import json, os, sys, threading, time
import berth_injob
heard = berth_injob.ready()
job = berth_injob._injob.job()
def tell():
    before = None
    while True:
        now = job.duty()
        if now != before:
            print(json.dumps({"heard": heard, "duty": now, "why": berth_injob.why()}), flush=True)
            before = now
        time.sleep(0.01)
threading.Thread(target=tell, daemon=True).start()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
while True:
    time.sleep(0.05)
    berth_injob.step()
"""
# What a task's environment has of ours, as one line of JSON.
SHOW = """
import json, os, sys
names = ("PYTHONPATH", "LD_PRELOAD", "BERTH_WORD", "BERTH_INJECTED")
loaded = any("libberth_injob" in line for line in open("/proc/self/maps"))
print(json.dumps({"who": sys.argv[1], "loaded": loaded, **{name: os.environ.get(name) for name in names}}), flush=True)
"""


@pytest.fixture
def node(slurm: Slurm) -> Iterator[Node]:
    """The node on which hosts and guests of a test meet."""
    for name, text in (("steps.py", STEPS), ("show.py", SHOW)):
        slurm.target.run(["tee", f"{slurm.shared}/{name}"], user="root", stdin=text)
    found = nodes_of(slurm)[all_nodes(slurm)[0]]
    yield found
    slurm.clear()
    assert_nothing_left(slurm, found.name)


def lines(slurm: Slurm, job: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(slurm, job).splitlines() if line.startswith("{")]


def seen_by(slurm: Slurm, job: int, who: str) -> Mapping[str, Any]:
    def found() -> Mapping[str, Any] | None:
        return next((line for line in lines(slurm, job) if line.get("who") == who), None)

    return until(f"{who} of job {job} to show its environment", found, 60)


def hears(slurm: Slurm, job: int, what: str, least: int, most: int, after: int = 0) -> int:
    """Waits until the job's program sees a duty between these two, later than its first `after` duties; its number."""

    def now() -> int | None:
        found = [line["duty"] for line in lines(slurm, job) if "duty" in line]
        return next((number for number, duty in enumerate(found, 1) if number > after and least <= duty <= most), None)

    return until(f"job {job} to be told {what}", now, 90)


def test_a_guest_is_heard_and_held_and_its_own_pythonpath_survives(slurm: Slurm, node: Node) -> None:
    with berth_conf(slurm, '[node]\ninject = "hooks"'):
        body = f"""
export PYTHONPATH='{MINE}'
srun -n1 python3 {slurm.shared}/show.py step
exec python3 -c "import os; print(os.environ['PYTHONPATH'])"
"""
        plain = slurm.submit("-w", node.name, "-n1", body=body)
        assert MINE in slurm.finish(plain).splitlines()
        assert seen_by(slurm, plain, "step")["PYTHONPATH"] == MINE

        sits = f"""
python3 {slurm.shared}/show.py batch
export PYTHONPATH="/home/tests/more:$PYTHONPATH"
srun python3 {slurm.shared}/show.py step
BERTH_INJOB=off srun python3 {slurm.shared}/show.py off
sbatch -o {slurm.shared}/inner.$SLURM_JOB_ID -n1 -w {node.name} {slurm.shared}/inner.sh
exec python3 {slurm.shared}/steps.py {slurm.shared}/steps.py
"""
        # Slurm itself hands SLURM_GPUS on, and refuses a step for it in a job without GPUs.
        inner = f"#!/bin/bash\nunset SLURM_GPUS\nsrun -n1 python3 {slurm.shared}/show.py inner\n"
        slurm.target.run(["tee", f"{slurm.shared}/inner.sh"], user="root", stdin=inner)
        options = ["--gpu-tier=opportunistic", "--gpus=1", "-t", "20", "-w", node.name]
        guest = slurm.submit(*options, f"--export=ALL,PYTHONPATH={MINE}", body=sits)
        slurm.wait_state(guest, {"RUNNING"})
        word = f"/run/berth/words/{guest}/"

        batch, step = seen_by(slurm, guest, "batch"), seen_by(slurm, guest, "step")
        assert (batch["PYTHONPATH"], step["PYTHONPATH"]) == (f"{HOOKS}:{MINE}", f"{HOOKS}:/home/tests/more:{MINE}")
        assert batch["BERTH_WORD"].startswith(word)
        assert step["BERTH_WORD"] == batch["BERTH_WORD"]
        assert batch["LD_PRELOAD"] is None
        assert seen_by(slurm, guest, "off")["PYTHONPATH"] == f"/home/tests/more:{MINE}"

        # Nobody is beside it, so its gate is open; it beats, and the node reads its beats.
        alone = hears(slurm, guest, "that it is alone", 1000, 1000)
        read = "from pathlib import Path; from prolog_epilog.injob.word import read_beats; import sys;"
        read += "print(max((beat.steps for beat in read_beats(Path(sys.argv[1]))), default=0))"
        beats = f"/opt/berth/bin/python -c '{read}' {batch['BERTH_WORD']}"
        until("a beat of the guest", lambda: int(node.bash(beats)) or None)

        # What it submitted is another job, without a place on any GPU.
        def of_inner() -> dict[str, Any] | None:
            text = slurm.target.bash(f"cat {slurm.shared}/inner.{guest}", user="root", check=False).out
            return next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)

        shown = until("the inner job to show its environment", of_inner, 60)
        assert shown == {
            "who": "inner", "loaded": False, "PYTHONPATH": f"/home/tests/more:{MINE}",
            "LD_PRELOAD": None, "BERTH_WORD": None, "BERTH_INJECTED": None,
        }  # fmt: skip

        # A host comes: the gate is shut until its step time is known by its own beats, then opened step by step. It
        # makes its first step after the guest was held.
        begin = f"{slurm.shared}/begin.{guest}"
        host = slurm.submit(
            "--gpu-tier=guaranteed", "--gpu-mem=1G", "--gpus=8", "-w", node.name, "-t", "20",
            body=f"exec srun -n1 --overlap python3 {slurm.shared}/steps.py {begin}",
        )  # fmt: skip
        slurm.wait_state(host, {"RUNNING"})
        still = hears(slurm, guest, "to stand still", 0, 0, after=alone)
        slurm.target.run(["touch", begin], user="root")
        beside = hears(slurm, guest, "to go on beside its host", 1, 1000, after=still)
        assert until("the host's first line", lambda: lines(slurm, host))[0] == {"heard": True, "duty": 1000, "why": ""}
        slurm.target.run(["scancel", str(host)])
        hears(slurm, guest, "that it is alone again", 1000, 1000, after=beside - 1)
        assert slurm.state(guest) == "RUNNING"


def test_with_all_of_it_a_guest_has_the_library_and_a_host_has_not(slurm: Slurm, node: Node) -> None:
    with berth_conf(slurm, '[node]\ninject = "all"'):
        salloc = ["salloc", "--gpu-tier=guaranteed", "--gpus=1", "-w", node.name, "-t", "5"]
        shown = slurm.target.run([*salloc, "srun", "-n1", "python3", f"{slurm.shared}/show.py", "step"]).out
        assert json.loads(shown.splitlines()[-1])["PYTHONPATH"] == HOOKS

        show = f"srun -n1 python3 {slurm.shared}/show.py step\nexec sleep 300"
        host = slurm.submit("--gpu-tier=guaranteed", "--gpu-mem=1G", "--gpus=8", "-w", node.name, "-t", "20", body=show)
        slurm.wait_state(host, {"RUNNING"})
        occupy(slurm, "exclusive", *[name for name in all_nodes(slurm) if name != node.name])
        guest = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", "-t", "20", body=show)
        slurm.wait_state(guest, {"RUNNING"})

        assert seat(slurm, guest)[0] == node.name
        seen = {who: seen_by(slurm, job, "step") for who, job in (("host", host), ("guest", guest))}
        assert [seen[who]["PYTHONPATH"] for who in seen] == [HOOKS, HOOKS]
        assert [seen[who]["LD_PRELOAD"] for who in seen] == [None, LIBRARY]
        assert [seen[who]["loaded"] for who in seen] == [False, True]
