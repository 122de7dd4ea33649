# SPDX-License-Identifier: Apache-2.0
"""Drawn stories of a GPU: guests are requeued, the guard restarts, owners leave and come back. No owner fails."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.examples import SEED, examples
from tests.unit.memory_node import OWNER, TOTAL_MIB, MemoryNode, groups

pytestmark = pytest.mark.slow

HOST, GUEST = 107, 8
EVENTS = ("owner", "guest", "guest", "guard", "guard updated", "time")
HOARDER = """
from tests.fakes.cuda.program import *
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
Context()
held = 0
while True:
    if not ALLOCATIONS["cuMemAlloc_v2"](128)[0]:
        held += 128
    elif held >= 0:
        print(held, flush=True)
        held = -TOTAL
    else:
        time.sleep(0.02)
""".replace("TOTAL", str(10**9))
"""A guest that takes all memory that it can get, before anything else, and obeys no signal."""


@dataclass(slots=True)
class Story:
    """What happens on one GPU."""

    node: MemoryNode
    draw: random.Random
    left: int = 0
    """MiB that the owner said and has not taken yet; 0 if there is no owner."""
    told: list[str] = field(default_factory=list)

    def happens(self, event: str) -> None:
        self.told.append(event)
        if event == "owner":
            self.owner()
        elif event == "guest":
            self.guest()
        elif event == "time":
            time.sleep(self.draw.uniform(0.0, 1.5))
        else:
            assert self.node.guard is not None
            self.node.guard.send_signal(signal.SIGKILL if event == "guard" else signal.SIGTERM)
            self.node.guard.wait()
            self.node.start_guard(waits=self.draw.random() < 0.3)

    def owner(self) -> None:
        """It comes, or leaves and takes the same number again later, as one that is requeued or moved does."""
        if HOST in self.node.processes:
            self.node.end(HOST, "guaranteed")
            self.left = 0
            return
        self.left = self.draw.randrange(2_048, TOTAL_MIB * 3 // 4, 128)
        self.told[-1] += f" of {self.left} MiB"
        said = self.node.prolog(HOST, "guaranteed", mem=self.left).stderr
        self.told[-1] += f" ({said.strip()})" if said else ""
        self.node.begin(HOST, OWNER)
        assert self.node.line(HOST) == "ready"

    def guest(self) -> None:
        """It comes, or is requeued and comes again."""
        if GUEST in self.node.processes:
            self.node.end(GUEST, "opportunistic")
        self.node.prolog(GUEST, "opportunistic")
        self.node.begin(GUEST, HOARDER)
        self.told[-1] += f" with {self.node.line(GUEST)} MiB"

    def takes(self, mib: int) -> None:
        """The owner takes memory that it said it needs."""
        result, _ = self.node.takes(HOST, mib)
        assert result == 0, f"no {mib} MiB for the owner: {'; '.join(self.told)}\n{self.node.said()}"
        self.left -= mib


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    try:
        groups().mkdir(parents=True)
    except OSError:
        pytest.skip("this machine lets nobody make groups in a v1 freezer")
    with tempfile.TemporaryDirectory(prefix="bn") as folder, MemoryNode(Path(folder)) as made:
        yield made


@pytest.mark.parametrize("seed", [1, 4, *(SEED + number for number in range(examples(1)))])
def test_an_owner_has_what_it_said_whatever_happens_around_it(node: MemoryNode, seed: int) -> None:
    story = Story(node, random.Random(seed))
    node.start_guard()
    for _ in range(10):
        story.happens(story.draw.choice(EVENTS))
        if story.left:
            story.takes(min(story.left, story.draw.randrange(128, 2_048, 128)))
    if story.left:
        story.takes(story.left)
