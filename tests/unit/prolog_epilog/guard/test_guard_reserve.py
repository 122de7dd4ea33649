# SPDX-License-Identifier: Apache-2.0
"""What a guest may hold of its host's GPU, in a world of the guard's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from prolog_epilog.guard.hold.owner_memory import OwnerMemory
from prolog_epilog.guard.roll import Member
from prolog_epilog.injob import word
from prolog_epilog.node import cgroups
from tests.unit.guard_world import GIB, World

pytestmark = pytest.mark.slow

GUEST, HOST = 7, 107


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(cgroups, "job_of", made.job_of)
    yield made
    made.close()


def test_a_guest_whose_host_says_no_need_leaves_and_has_its_grace(world: World) -> None:
    # As after an upgrade: an earlier release seated it.
    world.comes(HOST, "guaranteed", step=0.4, mem=0)
    guest = world.comes(GUEST, "opportunistic", step=0.2)

    world.seconds(20)
    assert guest.process.poll() is None
    assert guest.order().quota == 1, "it gets no more memory"
    assert guest.order().duty == 0
    world.seconds(20)

    assert guest.process.poll() is not None
    assert any("how much memory its host needs is not known" in said for said in world.said)


def test_what_an_owner_was_told_stands_until_a_new_guard_has_seen_the_device(tmp_path: Path) -> None:
    word.create(tmp_path / "107", ["GPU-1"], 0, 0)
    page = tmp_path / "107" / "GPU-1"
    before = word.OrderPage(page)
    before.tell_owner(5 * GIB, lease_s=4.0)
    before.close()
    owner = Member(HOST, 0, ("GPU-1",), {"GPU-1": page}, "time")
    guard = OwnerMemory("GPU-1")

    guard.tell(0.0, owner, cast("Any", object()), None)
    assert word.map_order(page)[word.GUEST] == 5 * GIB, "an allocation that waits goes on waiting"

    guard.tell(0.1, owner, None, None)
    assert word.map_order(page)[word.GUEST] == 0, "there is no guest"


def test_a_guest_that_holds_what_its_host_needs_is_ended_at_once(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4, mem=60 * 1024)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.held[GUEST] = 15 * GIB
    world.seconds(5)
    assert guest.process.poll() is None
    assert guest.order().quota == (int(80 * 1024 * 0.95) - 60 * 1024) << 20

    world.held[GUEST] = 21 * GIB
    world.seconds(5, until=lambda: guest.process.poll() is not None)

    assert guest.process.poll() is not None
    assert "evict" in [one.word for one in world.told]


def test_a_guest_that_runs_again_between_two_looks_of_the_guard_is_held_and_ended_as_before(world: World) -> None:
    # Its Epilog was lost, so the guard saw no moment without it. The run before was over, and all counted as safe.
    world.comes(HOST, "guaranteed", step=0.4, mem=60 * 1024)
    world.held[GUEST] = 21 * GIB
    for start in (1_000, 2_000):
        guest = world.comes(GUEST, "opportunistic", step=0.2, start=start)

        world.seconds(8)

        assert guest.process.poll() is not None
    assert [one.word for one in world.told].count("evict") == 2


def test_a_guest_may_have_the_rest_when_its_host_has_gone(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4, mem=60 * 1024)
    guest = world.comes(GUEST, "opportunistic", step=0.2, mem=30 * 1024)
    world.seconds(2)
    assert guest.order().quota == (int(80 * 1024 * 0.95) - 60 * 1024) << 20

    world.goes(HOST)
    world.seconds(1)

    assert guest.order().quota == 30 * GIB


def test_a_new_guard_leaves_the_ceiling_as_it_is_until_it_has_seen_the_device(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4, mem=60 * 1024)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    ceiling = guest.order().quota
    world.driver, world.devices.looks = False, {}
    world.restart()

    world.seconds(3)

    assert guest.order().quota == ceiling > 1
