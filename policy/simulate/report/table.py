# SPDX-License-Identifier: Apache-2.0
"""Writes the table for people: a line for each policy, with means if there are several seeds."""

from collections.abc import Iterable, Sequence

from policy.report.document import aligned
from policy.simulate.report.chance import figure, ratio
from policy.simulate.report.summary import Line, Summary, lines

_TIMES = (
    ("avg_jct_s", "avg JCT"),
    ("geomean_jct_s", "geomean"),
    ("p99_jct_s", "p99"),
    ("avg_wait_s", "avg wait"),
    ("makespan_s", "makespan"),
)
_SHARES = (("gpu_util_allocated", "held"), ("gpu_util_useful", "useful"))

_HOUR, _MINUTE = 3600.0, 60.0
_LONG = 2.0
"""The least number of a unit for which the unit is used."""


def unit_of(seconds: Iterable[float]) -> tuple[float, str]:
    """Returns the largest unit in which these times are not too small.

    >>> unit_of([90.0]), unit_of([20_000.0])
    ((1.0, 's'), (3600.0, 'h'))
    """
    most = max(seconds, default=0.0)
    if most >= _LONG * _HOUR:
        return _HOUR, "h"
    return (_MINUTE, "min") if most >= _LONG * _MINUTE else (1.0, "s")


def cells_of(rows: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the body of the table."""
    body = lines(rows)
    size, unit = unit_of(line.mean("avg_jct_s") or 0.0 for line in body)
    head = ["policy", f"avg JCT {unit}", "vs first"]
    head += [f"{title} {unit}" for _, title in _TIMES[1:]] + [f"{title} %" for _, title in _SHARES] + ["moves", "run s"]
    table = [
        [
            line.policy,
            f"{(line.mean('avg_jct_s') or 0.0) / size:.3f}",
            _beside(line, body[0]),
            *(_number(line.mean(name), size, 3) for name, _ in _TIMES[1:]),
            *(_number(line.mean(name), 0.01, 1) for name, _ in _SHARES),
            _number(line.mean("moves"), 1.0, 0),
            _number(line.mean("wall_s"), 1.0, 2),
        ]
        for line in body
    ]
    return head, table


def _beside(line: Line, peer: Line) -> str:
    """Returns the difference of two rows in average JCT, with its interval if there are several pairs."""
    found = ratio(line, peer, figure("avg_jct_s"))
    if line is not peer and found.pairs > 1:
        value, lower, upper = (100 * (one - 1) for one in (found.value, found.lower, found.upper))
        return f"{value:+.1f} % ({round(lower):+d} to {round(upper):+d})"
    jct, others = line.mean("avg_jct_s") or 0.0, peer.mean("avg_jct_s")
    return f"{100 * (jct / others - 1):+.1f} %" if others else ""


def _number(value: float | None, size: float, digits: int) -> str:
    return "" if value is None else f"{value / size:.{digits}f}"


def as_text(rows: Sequence[Summary]) -> str:
    """Returns the table as plain text, numbers to the right."""
    head, body = cells_of(rows)
    return "".join(f"{line}\n" for line in aligned([head, *body], range(1)))
