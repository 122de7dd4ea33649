# SPDX-License-Identifier: Apache-2.0
"""What is told to MPS v2, word by word, and what is made of its answers; MPS is a table of values here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest

from prolog_epilog.errors import ControlError
from prolog_epilog.mps import ceiling as module
from prolog_epilog.mps.ceiling import Ceiling
from prolog_epilog.mps.control import Refused
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState, Tenant

UUIDS = ("GPU-a", "GPU-b")


class Mps:
    """A control program with one server, whose answers are those of driver 550."""

    uuids = UUIDS

    def __init__(self, server: int | None = 77, *, keeps: bool = True, unknown: Iterable[str] = ()) -> None:
        self.server, self.keeps, self.unknown = server, keeps, set(unknown)
        self.values: dict[str, str] = {}
        self.changes = list[str]()
        self.clients = "4001\n4002\nthese are 2 clients\n"
        self.waits, self.uids = list[float](), list[int | None]()
        self.status = "ACTIVE"

    def await_answer(self, question: str, until: float) -> None:
        assert (question, until) == ("get_default_active_thread_percentage", 500.0)

    def tell(self, words: str, seconds: float = 0.0, *, uid: int | None = None) -> str:
        verb, *rest = words.split()
        self.uids.append(uid)
        if verb in self.unknown:
            raise Refused(f"MPS refused {verb}", "Unknown command\n")
        if verb == "get_server_list":
            return f"{self.server}\n" if self.server else "\n"
        if verb == "start_server":
            self.changes.append(words)
            self.waits.append(seconds)
            return ""
        if verb == "get_client_list":
            return self.clients
        if verb == "terminate_client":
            return "0\n" if rest == ["77", "4001"] else "1\n"
        if verb == "get_server_status":
            return f"{self.status}\n"
        if verb.startswith("set_"):
            self.changes.append(words)
            *key, value = [verb.removeprefix("set_"), *rest]
            if self.keeps:
                self.values[" ".join(key)] = value
            return ""
        return self.values.get(" ".join([verb.removeprefix("get_"), *rest]), "")


def state(*tenants: Tenant, multi_user: bool = False) -> SetState:
    return SetState("boot", UUIDS, (0, 0), "ceiling", multi_user, None, (), tenants)


def tell(mps: Mps) -> Any:
    return mps


ONE, OTHER = Tenant(1, 1_000, 30, 2_048), Tenant(2, 1_001, 50, 4_096)
ON_EACH_GPU = [
    "set_default_active_thread_percentage 50",
    "set_active_thread_percentage 77 50",
    *(
        f"set_{what} {ordinal} 4096M"
        for ordinal in (0, 1)
        for what in ("default_device_pinned_mem_limit", "device_pinned_mem_limit 77")
    ),
]


def test_a_tenant_that_comes_raises_the_ceiling_on_each_gpu_and_is_held_below_it_by_its_own_limits() -> None:
    mps = Mps()
    found = Ceiling().admit(tell(mps), state(ONE, OTHER), ONE)
    assert mps.changes == ON_EACH_GPU
    assert found == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M,1=2048M",
    }


def test_one_that_leaves_lowers_it() -> None:
    mps = Mps()
    Ceiling().leave(tell(mps), state(ONE), OTHER)
    assert mps.changes == [words.replace("50", "30").replace("4096M", "2048M") for words in ON_EACH_GPU]


def test_a_limit_that_no_tenant_has_any_more_is_set_above_all_and_one_that_never_was_stays_away() -> None:
    mps = Mps()
    Ceiling().set_memory(tell(mps), 77, None)
    assert mps.changes == [], "no limit was ever set"
    Ceiling().set_memory(tell(mps), 77, 200)
    assert mps.values["device_pinned_mem_limit 77 1"] == "1024M", "below 1 GiB MPS may show nothing"
    mps.changes.clear()
    Ceiling().set_memory(tell(mps), 77, None)
    assert [words for words in mps.changes if "default" not in words] == [
        f"set_device_pinned_mem_limit 77 {ordinal} {1 << 20}M" for ordinal in (0, 1)
    ]


def test_what_mps_does_not_take_is_no_limit() -> None:
    with pytest.raises(ControlError, match="the server's percentage, not 50 %"):
        Ceiling().admit(tell(Mps(keeps=False)), state(ONE, OTHER), ONE)
    with pytest.raises(ControlError, match="the memory limit of GPU-a"):
        Ceiling().set_memory(tell(Mps(keeps=False)), 77, 2_048)
    with pytest.raises(ControlError, match="the default memory limit of GPU-a"):
        Ceiling().set_default_memory(tell(Mps(keeps=False)), 2_048)
    with pytest.raises(ControlError, match="MPS has lost its server"):
        Ceiling().leave(tell(Mps(server=None)), state(ONE), OTHER)


@pytest.mark.parametrize(("multi_user", "uid"), [(False, 1_000), (True, 0)])
def test_a_new_server_begins_with_the_limits_and_belongs_to_its_user(
    monkeypatch: pytest.MonkeyPatch, *, multi_user: bool, uid: int
) -> None:
    mps, awaited = Mps(), list[tuple[object, ...]]()

    def await_server(find: Any, status: Any, *rest: object) -> Proven:
        awaited.append((find(), status(), *rest))
        return Proven(77, 1, "server", "boot")

    monkeypatch.setattr(module, "await_server", await_server)
    monkeypatch.setattr(time, "monotonic", lambda: 498.0)
    Ceiling().open(tell(mps), state(ONE, OTHER, multi_user=multi_user), 500.0)
    assert mps.changes == [
        "set_default_active_thread_percentage 50",
        *(f"set_default_device_pinned_mem_limit {ordinal} 4096M" for ordinal in (0, 1)),
        f"start_server -uid {uid}",
    ]
    assert (awaited, mps.waits) == ([(77, "ACTIVE", uid, "boot", 500.0)], [2.0])


@pytest.mark.parametrize(
    ("server", "unknown", "shown", "status"),
    [
        (77, (), "", "ACTIVE"),
        (None, (), "", "GONE"),
        # Driver 535 knows no such question.
        (77, ("get_server_status",), "30.0", "ACTIVE"),
        (77, ("get_server_status",), "", "INITIALIZING"),
        (77, ("get_server_status", "get_active_thread_percentage"), "", "GONE"),
    ],
)
def test_a_servers_status_is_read_in_the_words_of_each_driver(
    server: int | None, unknown: tuple[str, ...], shown: str, status: str
) -> None:
    mps = Mps(server, unknown=unknown)
    mps.values["active_thread_percentage 77"] = shown
    assert Ceiling().status(tell(mps)) == status


def test_clients_are_the_numbers_that_stand_alone_on_a_line() -> None:
    assert Ceiling().clients(tell(Mps())) == (4001, 4002)
    assert Ceiling().clients(tell(Mps(server=None))) == Ceiling().clients(tell(Mps(unknown=["get_client_list"]))) == ()


def test_a_client_is_ended_if_mps_says_so() -> None:
    assert [Ceiling().terminate(tell(Mps()), pid) for pid in (4001, 4002)] == [True, False]
    assert not Ceiling().terminate(tell(Mps(server=None)), 4001)
    assert not Ceiling().terminate(tell(Mps(unknown=["terminate_client"])), 4001)


@pytest.mark.parametrize(
    ("euid", "uid", "unknown", "loose"),
    [
        (0, 1_000, (), True),
        (0, 1_000, ("set_active_thread_percentage",), False),
        (0, 0, (), True),
        (1_000, 1_000, (), True),
        (1_001, 1_000, (), False),
    ],
)
def test_whether_a_tenant_may_raise_its_own_limit_is_tried_as_that_tenant(
    monkeypatch: pytest.MonkeyPatch, *, euid: int, uid: int, unknown: tuple[str, ...], loose: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    mps = Mps(unknown=unknown)
    assert Ceiling().loose(tell(mps), state(Tenant(1, uid, 30))) is loose
    tried = euid == 0 and uid != 0
    assert mps.uids[-1:] == ([uid] if tried else [])
    assert mps.changes == (["set_active_thread_percentage 77 30"] if tried and loose else [])


def test_a_level_says_who_holds_the_job() -> None:
    largest, smaller = (Ceiling().level(state(ONE, OTHER), tenant) for tenant in (OTHER, ONE))
    assert (largest.name, smaller.name) == ("server-ceiling", "server-ceiling")
    assert re.match(r"MPS holds the job at 50 % .*; 4096 MiB on each GPU", largest.text)
    assert re.match(r"the job's environment holds it at 30 % .*, MPS at 50 %; 2048 MiB", smaller.text)
