# SPDX-License-Identifier: Apache-2.0
"""An owner does not fail because of its guest: real processes, the real library and the real guard on one GPU."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.injob import word
from prolog_epilog.tenants import share_file
from tests.unit.memory_node import GREEDY, OWNER, TOTAL_MIB, UUID, MemoryNode, eventually, groups

pytestmark = pytest.mark.slow

HOST, GUEST = 107, 8
NEED = 10_240
LEFT = int(TOTAL_MIB * 0.95) - NEED
"""What the host leaves to a guest."""
OUT_OF_MEMORY = 2


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    try:
        groups().mkdir(parents=True)
    except OSError:
        pytest.skip("this machine lets nobody make groups in a v1 freezer")
    with tempfile.TemporaryDirectory(prefix="bn") as folder, MemoryNode(Path(folder)) as made:
        yield made


def owner_comes(node: MemoryNode, need: int | None = NEED, **more: object) -> float:
    """Its Prolog and its program; how long the Prolog took."""
    began = time.monotonic()
    node.prolog(HOST, "guaranteed", **({"mem": need} if need else {}), **more)
    took = time.monotonic() - began
    node.begin(HOST, OWNER)
    assert node.line(HOST) == "ready"
    return took


def guest_comes(node: MemoryNode, kind: str = "plain", **more: object) -> int:
    """It has taken what it can get: so many MiB."""
    node.prolog(GUEST, "opportunistic", **more)
    node.begin(GUEST, GREEDY, kind, outside="outside" in kind)
    line = node.line(GUEST)
    assert line, f"the guest ended with status {node.processes[GUEST].wait(10)}; the guard said: {node.said()}"
    return int(line)


@pytest.mark.parametrize("kind", ["plain", "deaf", "graphs"])
def test_a_guest_takes_no_more_than_its_host_leaves(node: MemoryNode, kind: str) -> None:
    node.start_guard()
    owner_comes(node)

    assert LEFT - 256 < guest_comes(node, kind) <= LEFT

    result, seconds = node.takes(HOST, NEED)
    assert result == 0
    assert seconds < 1.0


def test_the_ceiling_needs_no_guard_that_lives(node: MemoryNode) -> None:
    owner_comes(node)

    assert LEFT - 256 < guest_comes(node) <= LEFT
    assert node.takes(HOST, NEED)[0] == 0


def test_the_ceiling_stands_when_the_guard_is_killed(node: MemoryNode) -> None:
    node.start_guard()
    owner_comes(node)
    node.prolog(GUEST, "opportunistic")
    assert node.guard is not None
    time.sleep(1.5)
    node.guard.kill()
    node.guard.wait()
    node.begin(GUEST, GREEDY, "plain")

    assert LEFT - 256 < int(node.line(GUEST)) <= LEFT
    assert node.takes(HOST, NEED)[0] == 0


@pytest.mark.parametrize("kind", ["plain", "deaf", "graphs", "outside deaf"])
def test_a_guest_that_holds_the_hosts_memory_is_gone_before_the_host_starts(node: MemoryNode, kind: str) -> None:
    node.start_guard()
    assert guest_comes(node, kind) >= TOTAL_MIB - 256
    assert eventually(lambda: "process 0" in (node.folder / "machine.live").read_text())

    took = owner_comes(node)

    assert node.takes(HOST, NEED) < (1, 1.0)
    assert node.takes(HOST, TOTAL_MIB - NEED - 256)[0] == 0, "the guest's memory is free"
    assert took < 20.0


def test_a_guest_that_fits_stays_and_its_ceiling_shrinks(node: MemoryNode) -> None:
    node.start_guard()
    assert guest_comes(node, mem=2_048) <= 2_048

    owner_comes(node)

    assert node.processes[GUEST].poll() is None
    order = word.map_order(node.paths.word(GUEST) / UUID)
    assert eventually(lambda: order[word.QUOTA] == 2_048 << 20)
    assert node.takes(HOST, NEED)[0] == 0


def test_a_host_of_which_nobody_knows_what_it_needs_has_no_guest(node: MemoryNode) -> None:
    node.start_guard()
    owner_comes(node, None)

    node.prolog(GUEST, "opportunistic")

    file = share_file.read(node.paths, GUEST)
    assert file is not None
    assert "leaves 0 MiB" in file.why


def test_what_berthd_has_measured_of_this_host_counts_and_of_another_does_not(node: MemoryNode) -> None:
    owner_comes(node, None)

    assert LEFT - 256 < guest_comes(node, need=f"{HOST}:{NEED}") <= LEFT
    node.end(GUEST, "opportunistic")

    node.prolog(GUEST, "opportunistic", need=f"{HOST + 1}:{NEED}")
    file = share_file.read(node.paths, GUEST)
    assert file is not None
    assert file.degraded


def test_a_guest_outside_the_library_is_ended_as_soon_as_it_is_seen_to_hold_the_hosts_memory(node: MemoryNode) -> None:
    node.start_guard()
    owner_comes(node)
    node.prolog(GUEST, "opportunistic")
    guest = node.begin(GUEST, GREEDY, "deaf outside", outside=True)

    assert eventually(lambda: guest.poll() is not None, 8.0)

    assert guest.returncode == -signal.SIGKILL
    assert "and its host needs 10240 of 16384 MiB" in node.said()
    assert node.takes(HOST, NEED)[0] == 0


@pytest.mark.parametrize("kind", ["plain", "deaf", "graphs", "outside deaf"])
def test_an_allocation_beyond_what_was_said_waits_for_the_guest_to_go(node: MemoryNode, kind: str) -> None:
    node.settings["inject"] = "retry"
    node.start_guard()
    owner_comes(node, 2_048 if "outside" not in kind else 64)
    guest_comes(node, kind)
    time.sleep(1.5)  # the guard looks at the device once a second

    result, seconds = node.takes(HOST, 12_288)

    assert result == 0
    assert seconds < 3.0
    assert node.processes[GUEST].wait(5.0)


@pytest.mark.parametrize("kind", ["plain", "deaf"])
def test_managed_memory_gives_way_and_a_full_gpu_ends_its_guest(node: MemoryNode, kind: str) -> None:
    node.settings["inject"] = "managed"
    node.start_guard()
    owner_comes(node, 2_048)
    assert guest_comes(node, kind) > TOTAL_MIB * 0.75, "the host's ceiling counts it"

    result, seconds = node.takes(HOST, 12_288)

    assert result == 0
    assert seconds < 1.0
    assert node.processes[GUEST].wait(60.0)
    assert "of the memory is in use" in node.said()


def test_a_graphs_memory_does_not_give_way(node: MemoryNode) -> None:
    node.settings["inject"] = "managed"
    node.start_guard()
    owner_comes(node, 2_048)
    guest_comes(node, "graphs")

    assert node.takes(HOST, 12_288)[0] == OUT_OF_MEMORY


def test_without_a_guest_an_allocation_that_fails_is_not_delayed(node: MemoryNode) -> None:
    node.settings["inject"] = "retry"
    node.start_guard()
    owner_comes(node)

    found = [node.takes(HOST, TOTAL_MIB + 1) for _ in range(20)]

    assert {result for result, _ in found} == {OUT_OF_MEMORY}
    assert sorted(seconds for _, seconds in found)[10] < 0.005


def test_an_allocation_that_the_guest_could_not_serve_fails_at_once(node: MemoryNode) -> None:
    node.settings["inject"] = "retry"
    node.start_guard()
    owner_comes(node)
    guest_comes(node)
    time.sleep(1.5)

    result, seconds = node.takes(HOST, 2 * TOTAL_MIB)

    assert result == OUT_OF_MEMORY
    assert seconds < 0.2
    assert node.processes[GUEST].poll() is None
