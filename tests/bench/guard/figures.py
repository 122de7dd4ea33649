# SPDX-License-Identifier: Apache-2.0
"""What a run over all pairs comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.guard.cases import SECONDS, Case
from tests.bench.guard.loop import TICK, Floats, Outcome, ticks

BOUND = 0.05
WINDOW_S = 10.0
REACTION_S, REACTION_STEPS = 2.0, 3.0
SPEED_AT_BOUND = 1.0 / (1.0 + BOUND)


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair's outcome in numbers."""

    case: Case
    windows: Floats
    """The host's slowdown in each window of ten seconds."""
    gain: float
    """The guest's mean throughput over alone."""
    duty: float
    actions_a_minute: float
    reactions: tuple[tuple[float, float], ...]
    """For each burst that broke the bound: seconds until the bound held again, and how long it broke it by (factor)."""
    late_ms: float
    """p99 of step time or latency, less that of the host alone, in ms."""
    late_share: float
    """The same as a share of the host's own p99."""


def numbers(case: Case, outcome: Outcome) -> Pair:
    """An outcome in numbers."""
    windows = outcome.speed.reshape(-1, ticks(WINDOW_S)).mean(axis=1)
    late = alone = 0.0
    if len(outcome.latencies):
        late, alone = (float(np.quantile(one, 0.99)) for one in (outcome.latencies, outcome.alone))
    return Pair(
        case=case,
        windows=1.0 / windows - 1.0,
        gain=float(outcome.gain.mean()),
        duty=float(outcome.duty.mean()),
        actions_a_minute=outcome.actions / (SECONDS / 60.0),
        reactions=tuple(_reactions(case, outcome)),
        late_ms=1000.0 * (late - alone),
        late_share=late / alone - 1.0 if alone else 0.0,
    )


def _reactions(case: Case, outcome: Outcome) -> list[tuple[float, float]]:
    found = []
    for begin, end, _ in case.bursts:
        first, last = ticks(begin), min(ticks(end), len(outcome.speed))
        if first >= last or outcome.speed[first] >= SPEED_AT_BOUND:
            continue
        held = np.flatnonzero(outcome.speed[first:last] >= SPEED_AT_BOUND)
        took = float(held[0]) * TICK if len(held) else (last - first) * TICK
        allowed = allowed_reaction(case)
        if len(held) or took > allowed:  # a burst that was over before anybody had to react says nothing
            found.append((took, (1.0 / float(outcome.speed[first]) - 1.0) / BOUND))
    return found


def allowed_reaction(case: Case) -> float:
    """Two seconds, or three of the host's steps where that is longer."""
    return max(REACTION_S, REACTION_STEPS * case.step_s)


@dataclass(frozen=True, slots=True)
class Summary:
    """All pairs of a run."""

    slowdown_p99: float
    slowdown_mean: float
    windows_over: float
    """Share of windows beyond the bound."""
    gain: float
    duty: float
    guest_share: float
    guest_share_harmed: float
    guest_share_unharmed: float
    actions: float
    reaction_s: float
    """Where two seconds are allowed: 95th percentile over bursts that took the host to twice the bound or more."""
    reaction_steps: float
    """Where three steps are allowed: the same in steps of the host."""
    services_kept: float
    """Share of services whose p99 stayed within 10 ms or 5 %."""
    service_late_ms: float
    """95th percentile over services of the p99's excess, in ms."""


def summary(pairs: Sequence[Pair], oracle: Sequence[Pair]) -> Summary:
    """What is shown of a run beside what the oracle gave the same guests."""
    windows = np.concatenate([pair.windows for pair in pairs])
    reactions = [(took, pair.case) for pair in pairs for took, beyond in pair.reactions if beyond >= 2.0]
    services = [pair for pair in pairs if pair.case.kind == "serving"]
    kept = [pair.late_ms <= 10.0 or pair.late_share <= BOUND for pair in services]
    return Summary(
        slowdown_p99=float(np.quantile(windows, 0.99)),
        slowdown_mean=float(windows.mean()),
        windows_over=float((windows > BOUND).mean()),
        gain=float(np.mean([pair.gain for pair in pairs])),
        duty=float(np.mean([pair.duty for pair in pairs])),
        guest_share=_share(pairs, oracle, [True] * len(pairs)),
        guest_share_harmed=_share(pairs, oracle, [pair.case.harmed for pair in oracle]),
        guest_share_unharmed=_share(pairs, oracle, [pair.case.host_speed >= 1.0 for pair in oracle]),
        actions=float(np.mean([pair.actions_a_minute for pair in pairs])),
        reaction_s=_quantile([took for took, case in reactions if allowed_reaction(case) == REACTION_S], 0.95),
        reaction_steps=_quantile(
            [took / case.step_s for took, case in reactions if allowed_reaction(case) > REACTION_S], 0.95
        ),
        services_kept=float(np.mean(kept)) if kept else 1.0,
        service_late_ms=_quantile([pair.late_ms for pair in services], 0.95),
    )


def _share(pairs: Sequence[Pair], oracle: Sequence[Pair], chosen: Sequence[bool]) -> float:
    ours = sum(pair.gain for pair, one in zip(pairs, chosen, strict=True) if one)
    best = sum(pair.gain for pair, one in zip(oracle, chosen, strict=True) if one)
    return ours / best if best else 1.0


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0
