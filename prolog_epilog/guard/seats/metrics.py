"""Writes the guard's metrics for node_exporter's textfile collector (Prometheus's text format)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from prolog_epilog.errors import StateError
from prolog_epilog.guard.hold.levels import Counts
from prolog_epilog.guard.measure.machine import State
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.node import files

__all__ = ["text", "write"]

_GAUGES = {
    "duty": "Share of time in which the guest may use the GPU.",
    "frozen": "1 while the guest is held by the kernel's freezer.",
    "host_job": "The job that owns the GPU.",
    "guest_job": "The job that is a guest.",
    "guest_unknown_functions": "Driver functions that the guest looked up and its gate does not know.",
    "host_slowdown_ratio": "The host's last steps against alone, less 1.",
    "host_step_alone_seconds": "A step of the host without a guest.",
}


def _values(seat: GuardedSeat) -> dict[str, float]:
    """Returns the gauges that apply to this seat now."""
    found: dict[str, float] = {}
    if seat.grip is not None:
        found |= {"duty": seat.grip.duty, "frozen": seat.grip.frozen, "guest_job": seat.grip.guest.job}
        found["guest_unknown_functions"] = seat.grip.unknown_functions()
    if seat.host is not None:
        found["host_job"] = seat.host.job
        if seat.decider.baseline.known:
            found["host_slowdown_ratio"] = seat.slowdown
            found["host_step_alone_seconds"] = seat.decider.baseline.step
    return found


def text(seats: Sequence[GuardedSeat], shares: Counts) -> str:
    """Returns the text of all metrics."""
    return "".join(f"{line}\n" for line in [*_lines(seats), *_levels(shares)])


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


def write(path: str, seats: Sequence[GuardedSeat], shares: Counts) -> str:
    """Replaces the file in one step; returns the error as a sentence, or an empty text."""
    try:
        files.write(Path(path), text(seats, shares), 0o644)
    except StateError as problem:
        return f"metrics: {problem}, or mend [guard] metrics in berth.conf"
    return ""
