"""Chooses the control law that the settings name."""

from __future__ import annotations

from collections.abc import Callable

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.guard.decide.aimd import FeedForwardAimd
from prolog_epilog.guard.decide.fixed import Fixed
from prolog_epilog.guard.decide.law import Law
from prolog_epilog.guard.decide.muxflow import Muxflow, complement
from prolog_epilog.guard.settings import GuardSettings

__all__ = ["LAWS", "blind_law", "chosen_law"]

LAWS: dict[str, Callable[[GuardSettings, float, bool], Law]] = {
    "aimd": lambda settings, slope, service: FeedForwardAimd(settings.bound, settings.aimd, slope, service=service),
    "open": lambda _settings, _slope, _service: Fixed(1.0),
}
"""Each law by its name in the settings."""


def chosen_law(settings: GuardSettings, slope: float, *, service: bool) -> Law:
    """Returns the law for one pair; `slope` is the predicted share of its speed that the owner loses at full duty.

    The slope is from 0 to 1. For a service the law bounds the p99 of its latency, for a training job its mean step
    time.
    """
    if settings.law not in LAWS:
        raise NodeConfigError(f"[guard] law is one of {', '.join(LAWS)}, not {settings.law!r}")
    return LAWS[settings.law](settings, slope, service)


def blind_law(settings: GuardSettings, highest_activity: float, *, held: bool = False) -> Law:
    """Returns the law for an owner without a heartbeat; `highest_activity` is its highest SM activity alone, 0 to 1.

    If MPS already holds the guest to a share of the SMs (`held`), the law does not cut it by that share again.
    """
    return Muxflow(settings.muxflow, 1.0 if held else complement(highest_activity, settings.muxflow))
