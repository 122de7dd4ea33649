# SPDX-License-Identifier: Apache-2.0
"""The steps of the pass of guests, each by itself: who is evicted, looked for, seated and told why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from policy.cluster.shared.sharers import Sharers
from policy.formats.errors import NotNow
from policy.plan.ledger.changes import Evict
from policy.plan.opinions.guests import guest_pass, seats
from policy.plan.opinions.guests.guest_pass import GuestPass
from policy.request.tiers import EXCLUSIVE, GUARANTEED, OPPORTUNISTIC

one, other, elsewhere = (SimpleNamespace(job=job, mask=1) for job in (5, 6, 7))


def test_an_evicted_guest_leaves_its_seat_to_the_owner_and_its_neighbours_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "to_evict", lambda *_: {5: "its GPU is needed"})
    hosts: Any = ("host",)
    there: Any = {0: Sharers(hosts, (one, other)), 1: Sharers(hosts, (elsewhere,))}  # type: ignore[arg-type]
    jobs = [SimpleNamespace(id=number) for number in (4, 5, 6)]
    faked: Any = SimpleNamespace(
        book=SimpleNamespace(cluster=SimpleNamespace(sharers=there)),
        state=SimpleNamespace(touched=None, jobs=jobs),
        ledger=SimpleNamespace(changes=[]),
    )
    GuestPass._evict(faked)
    assert faked.ledger.changes == [Evict(jobs[1], "its GPU is needed")]  # type: ignore[arg-type]
    assert there == {0: Sharers(hosts, (other,)), 1: Sharers(hosts, (elsewhere,))}  # type: ignore[arg-type]


def waiting(number: int, *, begins: float = 0.0, rides_from: float = 0.0, nodes: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        order=number,
        nodes=nodes,
        may_start_at=lambda at: begins <= at,
        guest=SimpleNamespace(may_ride_from=rides_from, only=not rides_from),
    )


@pytest.mark.parametrize(("touched", "looks"), [(None, True), (frozenset({0}), False)])
def test_the_chooser_sees_all_who_want_a_seat_in_their_order_in_a_whole_pass(
    touched: frozenset[int] | None, *, looks: bool
) -> None:
    seen = list[tuple[object, list[int]]]()
    chooser = SimpleNamespace(look=lambda left, jobs: seen.append((left, [job.order for job in jobs])))
    guests = [waiting(4), waiting(2), waiting(3, nodes=(0,)), waiting(5, begins=200.0)]
    offers = [waiting(1, rides_from=50.0), waiting(7, rides_from=150.0), waiting(6, rides_from=50.0)]
    faked: Any = SimpleNamespace(
        _chooser=chooser,
        _left="what is left",
        _wants_offer=lambda job: job.order != 6,
        state=SimpleNamespace(touched=touched, present=SimpleNamespace(guests=[*guests, *offers])),
        book=SimpleNamespace(cluster=SimpleNamespace(at=100.0)),
    )
    GuestPass._look(faked, guests)
    assert seen == ([("what is left", [1, 2, 4])] if looks else [])
    faked._chooser = None
    GuestPass._look(faked, guests)
    assert len(seen) == looks


@pytest.mark.parametrize("with_chooser", [True, False])
def test_a_seat_is_the_choosers_where_there_is_one_and_a_refused_shape_is_asked_once(*, with_chooser: bool) -> None:
    asked = list[str]()

    def of_chooser(entry: object, left: object) -> str:
        asked.append("chooser")
        return f"seat of {left is faked._left}"

    def of_left(_: object) -> str:
        asked.append("left")
        raise NotNow("no seat is free")

    faked: Any = SimpleNamespace(
        ledger=SimpleNamespace(may_change=True),
        _refused=set(),
        _chooser=SimpleNamespace(find=of_chooser) if with_chooser else None,
        _left=SimpleNamespace(find=of_left),
    )
    entry: Any = SimpleNamespace(
        shape="one GPU", demand=SimpleNamespace(gpu_mem=None), guest=SimpleNamespace(unfit="before")
    )
    found: list[Any] = [GuestPass._find(faked, entry) for _ in range(2)]
    assert (found, asked) == (["seat of True"] * 2, ["chooser"] * 2) if with_chooser else ([None, None], ["left"])
    assert entry.guest.unfit == ""
    faked.ledger.may_change = False
    assert GuestPass._find(faked, entry) is None


@pytest.mark.parametrize(("cpus", "mem", "taken"), [(3, 100, (3, 100)), (None, None, (0, 0))])
def test_a_seat_takes_its_cpus_and_memory_too(
    monkeypatch: pytest.MonkeyPatch, cpus: int | None, mem: int | None, taken: tuple[int, int]
) -> None:
    claim: Any = SimpleNamespace(cpus=cpus, mem=mem)
    monkeypatch.setattr(guest_pass, "seat_on", lambda *_: claim)
    took, claimed = list[tuple[int, ...]](), list[object]()
    faked: Any = SimpleNamespace(
        book=SimpleNamespace(cluster=SimpleNamespace(at=100.0), claim=claimed.append),
        _left=SimpleNamespace(take=lambda *what: took.append(what)),
    )
    entry: Any = SimpleNamespace(demand=None)
    assert GuestPass._claim(faked, entry, 2, 0b10) is claim
    assert (took, claimed) == ([(2, 0b10, *taken)], [claim])


@pytest.mark.parametrize(
    ("tier", "share", "nodes", "mask", "starts"),
    [
        (GUARANTEED, None, (3,), 0b01, True),
        (GUARANTEED, None, (2, 3), 0b11, True),
        (GUARANTEED, None, (2,), 0b01, False),
        (GUARANTEED, None, (3,), 0b10, False),
        (EXCLUSIVE, 30, (3,), 0b01, True),
        (EXCLUSIVE, None, (3,), 0b01, False),
        (OPPORTUNISTIC, None, (3,), 0b01, False),
    ],
)
def test_slurm_starts_a_job_over_a_guest_if_it_asks_for_no_seat(
    tier: str, share: int | None, nodes: tuple[int, ...], mask: int, *, starts: bool
) -> None:
    demand = SimpleNamespace(tier=SimpleNamespace(name=tier), share=share)
    entry: Any = SimpleNamespace(demand=demand, nodes=nodes, mask=mask)
    guest: Any = SimpleNamespace(mask=0b01)
    assert guest_pass._starts_over(entry, guest, 3) is starts


@pytest.mark.parametrize(
    ("only", "begun", "seat", "unfit", "told"),
    [
        (True, True, False, "", "it waits for a seat: all seats are taken"),
        (True, True, True, "its owner loses too much", "it waits for a seat: its owner loses too much"),
        (True, True, True, "", None),
        (False, True, False, "", None),
        (True, False, False, "", None),
    ],
)
def test_a_guest_is_told_what_keeps_it_from_a_seat(
    monkeypatch: pytest.MonkeyPatch, *, only: bool, begun: bool, seat: bool, unfit: str, told: str | None
) -> None:
    def find(_: object) -> object:
        if not seat:
            raise NotNow("all seats are taken")
        return "a seat"

    monkeypatch.setattr(seats, "Left", lambda _: SimpleNamespace(find=find))
    entry: Any = SimpleNamespace(
        guest=SimpleNamespace(only=only, unfit=unfit), may_start_at=lambda _: begun, demand=None
    )
    book: Any = SimpleNamespace(at=100.0, cluster=None)
    found = GuestPass.reason(entry, book, book, book)
    assert (found and (found.kind, found.text)) == (told and ("capacity", told))
