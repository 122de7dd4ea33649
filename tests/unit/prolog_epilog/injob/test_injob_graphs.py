# SPDX-License-Identifier: Apache-2.0
"""The memory that CUDA graphs take, under the quota of the library between program and driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prolog_epilog.injob.word import OPEN, OrderPage
from tests.fakes import cuda
from tests.unit.prolog_epilog.injob.test_injob_library import LOOK_UPS, MIB, ORDER, made

__all__ = ["made"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_memory_of_graphs_is_booked_when_it_is_asked_for_and_as_the_driver_holds_it(made: Path, look_up: str) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""{ORDER}
Context()
if {look_up!r}: use_get_proc({look_up!r})
def used(): return mine().used // MIB
answers = {{}}
for name, make in GRAPH_MEMORY.items():
    if name == "cuGraphAddNode" and {look_up!r}: continue  # a CUDA of today means the second version by it
    too_much, _ = make(101)
    first, graph = make(60)
    asked = used()
    second, _ = make(60)
    launches = [call("cuGraphLaunch", graph, None) for _ in range(3)]
    held = used()
    plain, _ = ALLOCATIONS["cuMemAlloc_v2"](60)
    trimmed = call("cuDeviceGraphMemTrim", 0)
    answers[name] = [too_much, first, asked, second, launches, held, plain, trimmed, used(), cuda.fakeCudaUsed(0)]
print(json.dumps(answers))
"""
    answers = json.loads(cuda.run(code, str(made)))

    assert len(answers) == (3 if look_up else 4)
    expected = [2, 0, 60, 2, [0, 0, 0], 60, 2, 0, 0, 0]
    assert {name: answer for name, answer in answers.items() if answer != expected} == {}


def test_a_graph_that_was_launched_later_than_another_is_booked_then(made: Path) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""{ORDER}
Context()
make = GRAPH_MEMORY["cuGraphAddMemAllocNode"]
one, two = make(30)[1], make(50)[1]
read = []
for graph in (one, two):
    assert call("cuGraphLaunch", graph, None) == 0
    time.sleep(0.11)
    assert call("cuGraphLaunch", graph, None) == 0
    read.append(mine().used // MIB)
print(json.dumps([*read, mine().peak // MIB]))
"""
    assert json.loads(cuda.run(code, str(made))) == [30, 80, 80]
