"""All thresholds of the guard: one key each, with its default and its reason. An owner is called host in names.

Keys stand in tables of `[guard]`: `[guard.bound]`, `[guard.machine]` and so on; `settings_from` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from prolog_epilog.errors import NodeConfigError

__all__ = [
    "ActionSettings",
    "AimdSettings",
    "BaselineSettings",
    "BoundSettings",
    "GuardSettings",
    "MachineSettings",
    "MuxflowSettings",
    "settings_from",
]


@dataclass(frozen=True, slots=True)
class BoundSettings:
    """The bound on slowdown that is promised to owners."""

    slowdown: float = 0.05
    """The largest slowdown, against alone, in any window of an owner."""
    window_s: float = 10.0
    """The length of such a window."""
    late_share: float = 0.01
    """For a service the bound holds for the p99 of its latency: this part of its requests may exceed the bound ..."""
    late_memory_s: float = 600.0
    """... over about this time."""
    margin: float = 0.08
    """Part of the bound that is never given to a guest: the guard's own delays and errors use it up."""


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """The thresholds for learning the owner's step time alone."""

    steps: int = 8
    """Number of steps without a guest that make a baseline; with 3 % of noise they leave an error of 1 %."""
    wait_s: float = 30.0
    """An owner that is not heard for so long has no heartbeat; the baseline of one with long steps is taken with ..."""
    few_steps: int = 3
    """... this many of them."""
    every_s: float = 300.0
    """Time without a pause after which the guest is paused, so that a changed step of the owner is seen."""
    error: float = 0.006
    """A pause lasts until the baseline's error is below this, at most ..."""
    pause_s: float = 10.0
    """... this long (a peer of the guest that waits for it must not run into a time-out)."""
    memory_s: float = 900.0
    """Time after which a step counts 1/e as much as a new one."""
    noise_floor: float = 0.003
    """No noise is taken to be smaller than this."""
    noise_guess: float = 0.03
    """Noise of a step before it is measured."""
    outlier: float = 6.0
    """Steps this many standard deviations above the baseline do not enter it."""


@dataclass(frozen=True, slots=True)
class AimdSettings:
    """The default law: feed-forward from the slope, trimmed by feedback.

    The slope is the share of its speed that the owner loses at full duty of its guest; the predictor gives a first
    value.
    """

    slope_error: float = 0.06
    """Standard error of the predictor's slope."""
    confidence: float = 1.0
    """A slope counts as its estimate plus this many standard errors when the guest climbs."""
    caution: float = 2.0
    """The same, if the guest may jump at once."""
    memory_s: float = 60.0
    """Time after which a beat counts 1/e as much as a new one in the slope."""
    raise_step: float = 0.05
    """Additive increase of the duty."""
    raise_factor: float = 1.5
    """The increase of slow start, used if it is the larger one."""
    raise_every_s: float = 1.0
    """Time between increases, and never less than ..."""
    raise_after: float = 1.5
    """... this many times the time until the owner's answer to the last one is heard."""
    dead_band: float = 0.12
    """Relative change of duty below which nothing is done; it keeps actions few."""
    cut: float = 0.5
    """Multiplicative decrease at an alarm: the duty is multiplied by this, or by less."""
    alarm_slack: float = 0.9
    """Page's test for harm that grows: the excess of one beat that is allowed, in standard deviations."""
    false_alarm_s: float = 110.0
    """The same test: mean time between false alarms. With how often the owner is heard, it sets the threshold."""
    long_step_s: float = 0.67
    """An owner with longer steps has reported little by the time that the guard has to react: ..."""
    long_false_alarm_beats: float = 60.0
    """... its false alarms may come after this many beats, on average."""
    harmless_alarm_s: float = 14_400.0
    """The same for an owner that its largest burst would not harm beyond the bound."""
    calm_slack: float = 0.35
    """The same test for harm that falls: a mistake costs little here, so smaller changes are seen."""
    false_calm_beats: float = 150.0
    """Beats between false alarms of this kind."""
    largest_residual: float = 8.0
    """One stalled step counts no more than this many standard deviations."""
    burst_reserve: float = 2.5
    """The demand of an owner whose bursts are not known yet may grow by this factor at any moment."""
    smallest_burst: float = 1.2
    """The demand of an owner whose bursts are known may still grow by at least this factor, ..."""
    largest_burst: float = 4.0
    """... and no burst larger than this is expected."""
    burst_memory_s: float = 600.0
    """Time after which a burst is forgotten to 1/e."""
    certain: float = 0.3
    """A slope enters that memory once its relative error is below this ..."""
    certain_beats: int = 5
    """... and so many beats agree: a single stalled step is no burst."""
    late_reserve: float = 0.5
    """Part of a service's late requests after which bursts may cost nothing any more."""
    least_target: float = 0.2
    """The part of the bound that the guest may spend however poor the baseline is: it must run to be learned from."""
    reaction_s: float = 0.4
    """The time that the guard adds to the owner's own step and the age of its heartbeat before a cut is felt."""


@dataclass(frozen=True, slots=True)
class MuxflowSettings:
    """MuxFlow's share by complement and its launch control, for owners that report nothing."""

    margin: float = 0.10
    smallest: float = 0.10
    largest: float = 0.90
    """The guest's share: what the owner's highest SM activity and the margin leave, kept between these two."""
    utilisation: float = 0.95
    """Set point of launch control: more launches below it, fewer above it."""
    clock: float = 0.85
    """Launches are cut while the device holds its clock below this share of the highest."""
    gain: float = 0.2
    """Change per second in the share of launches that is let through, per unit of utilisation that is missing."""
    cut: float = 0.5
    """Factor on the launches while the clock is held down."""
    floor: float = 0.05
    """The least control factor: launches are never held back below this."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Limits of MuxFlow's state machine: whether a GPU may take a guest, keep it, or must shed it."""

    healthy_utilisation: float = 0.80
    healthy_sm_active: float = 0.60
    healthy_clock: float = 0.85
    healthy_memory: float = 0.85
    """A GPU is healthy below all of these (the clock: above); the first two count only while no heartbeat is heard."""
    over_utilisation: float = 0.95
    over_sm_active: float = 0.85
    """The GPU is over its limit above both of these, if no heartbeat shows that the owner is well."""
    over_clock: float = 0.70
    """The GPU is over its limit if power or heat holds the clock below this."""
    over_memory: float = 0.95
    admit_s: float = 60.0
    """Seconds of healthy samples in a row before a guest is admitted."""
    leave_s: float = 5.0
    """Seconds of samples in a row that are not healthy before the GPU is Unhealthy."""
    shed_s: float = 2.0
    """Seconds of samples in a row over the limit before the guest goes."""
    cool_down_s: float = 60.0
    """First cool-down after Overlimit; doubled by each recent Overlimit, up to ..."""
    longest_cool_down_s: float = 3600.0
    forgive_s: float = 3600.0
    """This long without Overlimit takes one doubling back."""
    silent_s: float = 15.0
    """The device is not trusted after this long without a sample."""


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """The guard's actions: their limits and their times."""

    gate_lag_s: float = 0.05
    """Time until a new duty reaches the guest."""
    drain_s: float = 0.1
    """Time for which the queued work of a stopped guest still runs."""
    answer_s: float = 2.0
    """Time after which the freezer replaces a guest's gate that does not answer."""
    silent_host_s: float = 10.0
    """An owner that ends no step for this and three steps more is no longer judged by its steps."""
    silent_duty: float = 0.10
    """The highest duty of a guest whose owner fell silent."""
    evict_grace_s: float = 30.0
    """Time that a guest gets to save its work when it has to leave; the owner is safe at once."""
    end_s: float = 6.0
    """Time after its end at which a guest that still runs is requeued by Slurm."""
    ask_s: float = 1.0
    """Time that berthd and Slurm get to put an ended guest back into the queue before ..."""
    term_s: float = 1.5
    """... its processes get SIGTERM and, after this, SIGKILL."""
    freeze_slot_s: float = 0.2
    """Time slot for which a guest held by the freezer runs or is frozen."""
    host_bound_mib: float = 16_384.0
    """Host memory, in MiB, that a guest may pin to give device memory back."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """All settings of the guard."""

    law: str = "aimd"
    """The control law for owners with a heartbeat: aimd, or open for none."""
    slope: float = 0.3
    """Share of its speed that an owner loses at full duty of a guest whose slope was not predicted: 0 to 1."""
    metrics: str = ""
    """A file for node_exporter's textfile collector, such as /var/lib/node_exporter/berth.prom."""
    tell_every_s: float = 60.0
    """Time between reports of each GPU's state to berthd, changed or not, so that a new berthd knows."""
    bound: BoundSettings = field(default_factory=BoundSettings)
    baseline: BaselineSettings = field(default_factory=BaselineSettings)
    aimd: AimdSettings = field(default_factory=AimdSettings)
    muxflow: MuxflowSettings = field(default_factory=MuxflowSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    action: ActionSettings = field(default_factory=ActionSettings)


def settings_from(section: Mapping[str, object], where: str = "[guard]") -> GuardSettings:
    """Returns the settings of a `[guard]` section; ConfigError names an unknown key and the nearest right one."""
    return _filled(GuardSettings(), section, where)


_Table = TypeVar("_Table")


def _filled(table: _Table, section: Mapping[str, object], where: str) -> _Table:
    """Returns the table with its defaults replaced by what the section says."""
    known = {one.name: getattr(table, one.name) for one in fields(table)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for key, value in section.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"
            raise NodeConfigError(f"{where} has no key {key}{hint}")
        changed[key] = _value(known[key], value, f"{where} {key}")
    return replace(table, **changed)  # type: ignore[type-var]


def _value(default: object, value: object, where: str) -> object:
    if is_dataclass(default):
        if not isinstance(value, Mapping):
            raise NodeConfigError(f"{where} is a table of keys, not {value!r}")
        return _filled(default, value, where)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise NodeConfigError(f"{where} is a word, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise NodeConfigError(f"{where} is a number that is not negative, not {value!r}")
    if isinstance(default, int) and value != int(value):
        raise NodeConfigError(f"{where} is a whole number, not {value!r}")
    return type(default)(value)  # type: ignore[call-arg]
