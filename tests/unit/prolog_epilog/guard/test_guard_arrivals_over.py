# SPDX-License-Identifier: Apache-2.0
"""Notes of arrivals that are gone, or say otherwise, before the guest has left: the GPU's next owner is heard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.node import cgroups
from prolog_epilog.tenants import arrivals
from prolog_epilog.tenants.arrivals import Arrival
from tests.unit.guard_world import UUID, World

pytestmark = pytest.mark.slow

GUEST, NEXT, FIRST, SECOND = 7, 8, 108, 109


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(cgroups, "job_of", made.job_of)
    yield made
    made.close()


@pytest.mark.parametrize("requeued", [False, True], ids=["is over", "begins again on other GPUs"])
def test_after_an_owner_that_is_gone_the_next_one_is_rid_of_its_guest(world: World, *, requeued: bool) -> None:
    world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    arrivals.announce(world.paths, Arrival(FIRST, (UUID,), planned=False))
    world.seconds(0.5)
    # Its guest has not left the books yet.
    if requeued:
        arrivals.announce(world.paths, Arrival(FIRST, ("GPU-other",), planned=False))
    else:
        arrivals.clean(world.paths, lambda job: job != FIRST)
    world.seconds(5)
    world.goes(GUEST)
    world.seconds(0.5)

    guest = world.comes(NEXT, "opportunistic", step=0.2)
    world.seconds(2)
    arrivals.announce(world.paths, Arrival(SECOND, (UUID,), planned=False))
    answer = world.paths.arrivals / f"{SECOND}.safe"

    assert world.seconds(8, until=answer.exists) < arrivals.WAIT_SECONDS
    assert guest.process.wait(5) == -15
    world.goes(NEXT)
    world.seconds(0.5)
    assert [one.job for one in arrivals.pending(world.paths)] == []
