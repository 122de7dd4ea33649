# SPDX-License-Identifier: Apache-2.0
"""Writes the guard's metrics for node_exporter's textfile collector (Prometheus's text format).

No job number is in it: jobs are joined to GPUs by berthd's `berth_gpu_job_info`, if the site wants that.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from prolog_epilog.errors import StateError
from prolog_epilog.guard.hold.levels import Counts
from prolog_epilog.guard.measure.machine import State
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.node import files

_GAUGES = {
    "hosts": "Jobs that own the GPU: 1 or 0.",
    "guests": "Jobs that are a guest on it: 1 or 0.",
    "guest_duty_ratio": "Share of time in which the guest may use the GPU.",
    "guest_frozen": "1 while the guest is held by the kernel's freezer.",
    "guest_unknown_functions": "Driver functions that the guest looked up and its gate does not know.",
    "host_slowdown_ratio": "The host's last steps against alone, less 1.",
    "host_step_alone_seconds": "A step of the host without a guest.",
}


def _values(seat: GuardedSeat) -> dict[str, float]:
    """Returns the gauges that apply to this seat now."""
    found: dict[str, float] = {"hosts": seat.host is not None, "guests": seat.held is not None}
    if seat.held is not None:
        found |= {"guest_duty_ratio": seat.held.duty, "guest_frozen": seat.held.frozen}
        found["guest_unknown_functions"] = seat.held.unknown_functions()
    if seat.host is not None and seat.decider.baseline.known:
        found["host_slowdown_ratio"] = seat.slowdown
        found["host_step_alone_seconds"] = seat.decider.baseline.step
    return found


def text(seats: Sequence[GuardedSeat], shares: Counts, bound: float) -> str:
    """Returns the text of all metrics; `bound` is the slowdown that is promised to hosts."""
    return "".join(f"{line}\n" for line in [*_promise(bound), *_lines(seats), *_levels(shares)])


def _promise(bound: float) -> Iterator[str]:
    yield from _head("host_slowdown_bound_ratio", "The slowdown that no host is to exceed.", "gauge")
    yield f"berth_guard_host_slowdown_bound_ratio {bound:g}"


def _levels(shares: Counts) -> Iterator[str]:
    if shares:
        yield from _head("shares", "Jobs that share the GPU, by the level at which they are held.", "gauge")
    for (position, uuid, level), count in sorted(shares.items()):
        yield f'berth_guard_shares{{gpu="{position}",uuid="{uuid}",level="{level}"}} {count}'


def _lines(seats: Sequence[GuardedSeat]) -> Iterator[str]:
    yield from _head("state", "1 for the state that the GPU is in.", "gauge")
    for seat in seats:
        for state in State:
            labels = f'{_labels(seat)},state="{state.value.lower()}"'
            yield f"berth_guard_state{{{labels}}} {int(seat.state is state)}"
    values = [(seat, _values(seat)) for seat in seats]
    for name, meaning in _GAUGES.items():
        known = [(seat, found[name]) for seat, found in values if name in found]
        if known:
            yield from _head(name, meaning, "gauge")
        yield from (f"berth_guard_{name}{{{_labels(seat)}}} {number:.10g}" for seat, number in known)
    yield from _head("actions_total", "What was done to guests, by kind.", "counter")
    for seat in seats:
        for kind, count in sorted(seat.counts.actions.items()):
            yield f'berth_guard_actions_total{{{_labels(seat)},action="{kind}"}} {count}'
    yield from _head("guests_ended_total", "Guests that had to go.", "counter")
    yield from (f"berth_guard_guests_ended_total{{{_labels(seat)}}} {seat.counts.ended}" for seat in seats)
    yield from _head("guests_killed_total", "Those of them that did not end by themselves.", "counter")
    yield from (f"berth_guard_guests_killed_total{{{_labels(seat)}}} {seat.counts.killed}" for seat in seats)


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP berth_guard_{name} {meaning}"
    yield f"# TYPE berth_guard_{name} {kind}"


def _labels(seat: GuardedSeat) -> str:
    return f'gpu="{seat.place.position}",uuid="{seat.uuid}"'


def write(path: str, seats: Sequence[GuardedSeat], shares: Counts, bound: float) -> str:
    """Replaces the file in one step; returns the error as a sentence, or an empty text."""
    try:
        files.write(Path(path), text(seats, shares, bound), 0o644)
    except StateError as problem:
        return f"{problem}, or mend [guard] metrics in berth.conf"
    return ""
