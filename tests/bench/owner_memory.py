# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=owner-memory`: owners that allocate beside guests that take all they can: who fails, who waits.

Real draws are real processes on a simulated GPU with real Prologs, library, freezer and guard (root, and a v1 freezer).
Each owner takes what it needs in some pieces. By the *reserve* (`library`) it said what it needs. With `retry` and
`managed` it needs more than its runs before, and `inject` is that (under MPS its own limit holds an owner to what it
says). Modelled draws are the guard's own code and constants with drawn delays of berthd, the kernel and the driver.
`--inject managed` draws guests whose memory gives way, and has a table of its own: the simulated driver takes such
memory at once, so only a GPU shows how long an owner waits for it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prolog_epilog.guard.hold.ending import HURRY_S
from prolog_epilog.guard.hold.owner_memory import OwnerMemory
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.seats.keeper import PERIOD
from prolog_epilog.tenants import reserve
from tests.bench.table import Figure, at_most, report
from tests.unit.memory_node import GREEDY, OWNER, TOTAL_MIB, MemoryNode

KINDS = ("plain", "deaf", "graphs", "outside deaf")
GIVE_WAY = ("plain", "deaf")
"""Kinds of guests all of whose memory can be managed."""

_MIB = 1 << 20
Draws = dict[tuple[str, str, str], list[tuple[bool, float]]]
"""Whether an owner failed, and its longest allocation, by `inject`, way and the guest's kind."""


def real(draw: random.Random, node: MemoryNode, number: int, inject: str) -> tuple[str, str, bool, float]:
    """One owner and one guest: the way, the guest's kind, whether the owner failed, and its longest allocation."""
    host, guest, beyond = 1_000 + 2 * number, 1_001 + 2 * number, inject != "library"
    way, kind = draw.choice(("time", "mps")), draw.choice(KINDS)
    need = draw.randrange(2_048, TOTAL_MIB * 3 // 4, 128)
    node.settings["inject"] = inject
    owner: dict[str, object] = {} if beyond else {"mem": need}
    known: dict[str, object] = {"need": f"{host}:{draw.randrange(256, 1_024)}"} if beyond else {}
    guest_first = way == "time" and not beyond and draw.random() < 0.4
    for job in (guest, host) if guest_first else (host, guest):
        if job == host:
            node.prolog(host, "guaranteed", way=way, **owner)
            node.begin(host, OWNER)
            assert node.line(host) == "ready"
        else:
            node.prolog(guest, "opportunistic", way=way, **known)
            node.begin(guest, GREEDY, kind, outside="outside" in kind)
            node.line(guest)
    if not guest_first:
        time.sleep(1.2 if beyond else draw.random())  # the guard looks at the device once a second
    failed, longest, left = False, 0.0, need
    while left:
        piece = min(left, draw.randrange(128, need + 128, 128))
        result, seconds = node.takes(host, piece)
        failed, longest, left = failed or result != 0, max(longest, seconds), left - piece
    node.end(guest, "opportunistic")
    node.end(host, "guaranteed")
    return way, kind, failed, longest


def modelled_reserve(draw: random.Random) -> bool:
    """Whether an owner finds less than it needs, in a story of arrivals, growth, guards that die and come back."""
    memory, total = OwnerMemory("GPU-1"), draw.choice((16, 24, 40, 80, 141)) * 1_024
    said = draw.random() < 0.8
    need = draw.randrange(512, total)
    guest = Member(8, 0, ("GPU-1",), {}, "time", need=None if said else (7, need))
    host = Member(7, 0, ("GPU-1",), {}, "time", need if said else None)
    look = Look(DeviceSample(0.0), frozenset({8}), total * _MIB)
    held, there, quota = 0, draw.random() < 0.5, 0
    if there:
        room = reserve.ceiling_mib(total, reserve.need_mib(host, guest))
        if not room:
            return False  # its Prolog refuses it
        quota = room * _MIB
    for _ in range(draw.randrange(5, 40)):
        happens = draw.random()
        if happens < 0.6:
            held += draw.randrange(0, total * _MIB // 4) if not quota else max(0, min(total * _MIB // 4, quota - held))
            held = min(held, total * _MIB)
        elif happens < 0.9:  # the guard's turn; before its first look it leaves what the Prolog said
            found = memory.quota(host if there else None, guest, draw.choice((None, look)))
            quota = quota if found is None else found
        elif not there:
            there, quota = True, 1
            if held // _MIB + need > total:
                held = 0  # it is gone before the owner starts
        else:
            there = False
        if there and held // _MIB + need > total:
            return True
    return False


def modelled_delay(draw: random.Random, way: str) -> float:
    """Seconds that an allocation waits for its guest's end."""
    mps = draw.uniform(0.02, 0.1) if way == "mps" else 0.0
    asked = min(HURRY_S, draw.lognormvariate(-3.5, 1.0) + mps)
    freed = draw.uniform(0.02, 0.25)
    return draw.uniform(0.0, PERIOD) + asked + draw.uniform(0.0, PERIOD) + freed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--inject", default="library,retry", help="its values in turn, of library, retry, managed")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--modelled", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no draw after so many")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    found: Draws = defaultdict(list)
    ways = asked.inject.split(",")
    began, load = time.monotonic(), [os.getloadavg()[0]]
    number, broken = 0, 0
    while number < asked.draws and time.monotonic() < began + 60.0 * asked.minutes:
        with tempfile.TemporaryDirectory(prefix="bn") as folder, MemoryNode(Path(folder)) as node:
            node.start_guard()
            while number < asked.draws and time.monotonic() < began + 60.0 * asked.minutes:
                inject, number = ways[number % len(ways)], number + 1
                try:
                    way, kind, failed, longest = real(draw, node, number, inject)
                except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError) as problem:
                    # A Prolog that this machine was too busy for: it is told, and the others go on on a new node.
                    print(f"draw {number}: broken off: {problem}", flush=True)
                    broken += 1
                    break
                found[inject, way, kind].append((failed, longest))
                load.append(os.getloadavg()[0])
                told = f"{inject}, {way}, {kind}: {'failed' if failed else f'{longest:.2f} s'}"
                print(f"draw {number}: {told}", flush=True)
    notes = {
        "draws": f"{len(load) - 1} real, {broken} more broken off",
        "load": f"{np.mean(load):.1f} on average, {max(load):.1f} at most",
        "seconds": f"{time.monotonic() - began:.0f}",
    }
    if ways == ["managed"]:
        report("owner-memory-managed", "owners' allocations beside guests of managed memory", _managed(found), notes)
        return 0
    modelled = [modelled_reserve(draw) for _ in range(asked.modelled)]
    figures = [
        at_most("reserve_failures", sum(map(_failed, _of(found, "library", KINDS[:3]))), 0, "of owners"),
        Figure("reserve_owners", len(_of(found, "library", KINDS[:3])), "real processes"),
        Figure("reserve_outside_failures", sum(map(_failed, _of(found, "library", KINDS[3:]))),
               "of owners beside guests outside the library"),
        Figure("reserve_outside_owners", len(_of(found, "library", KINDS[3:])), "real processes"),
        at_most("reserve_modelled_failures", sum(modelled), 0, f"of {len(modelled)}"),
    ]  # fmt: skip
    for way, bound in (("mps", 1.0), ("time", 1.5)):
        these = _of(found, "retry", KINDS, (way,))
        model = [modelled_delay(draw, way) for _ in range(asked.modelled)]
        figures += [
            at_most(f"retry_{way}_failures", sum(map(_failed, these)), 0, f"of {len(these)} owners"),
            at_most(f"retry_{way}_delay_p99", _late(these), bound, "s, longest allocation of an owner"),
            at_most(f"retry_{way}_modelled_delay_p99", float(np.quantile(model, 0.99)), bound, "s"),
        ]
    notes["draws"] += f", {asked.modelled} modelled"
    report("owner-memory", "owners' allocations beside greedy guests", figures, notes)
    return 0


def _managed(found: Draws) -> list[Figure]:
    figures = []
    for name, kinds in (("", GIVE_WAY), ("graphs_", ("graphs",)), ("outside_", ("outside deaf",))):
        these = _of(found, "managed", kinds)
        failures, words = sum(map(_failed, these)), f"of {len(these)} owners beside guests: {' or '.join(kinds)}"
        figures.append(Figure(f"{name}failures", failures, words) if name else at_most("failures", failures, 0, words))
    return figures


def _of(
    found: Draws, inject: str, kinds: Sequence[str], ways: Sequence[str] = ("time", "mps")
) -> list[tuple[bool, float]]:
    return [one for way in ways for kind in kinds for one in found.get((inject, way, kind), [])]


def _failed(one: tuple[bool, float]) -> bool:
    return one[0]


def _late(these: Sequence[tuple[bool, float]]) -> float:
    return float(np.quantile([seconds for _, seconds in these], 0.99)) if these else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
