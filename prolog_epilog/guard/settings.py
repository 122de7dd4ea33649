"""Every threshold of the guard: one key each, with its default and its reason.

Keys stand in tables of `[guard]`: `[guard.bound]`, `[guard.machine]` and so on; `settings_from` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from prolog_epilog.errors import ConfigError

__all__ = [
    "ActionSettings",
    "AimdSettings",
    "AntmanSettings",
    "BaselineSettings",
    "BoundSettings",
    "GuardSettings",
    "MachineSettings",
    "MuxflowSettings",
    "PiSettings",
    "TgsSettings",
    "settings_from",
]


@dataclass(frozen=True, slots=True)
class BoundSettings:
    """The promise to hosts."""

    slowdown: float = 0.05
    """No window of a host is slower than alone by more than this."""
    window_s: float = 10.0
    """The length of such a window."""
    late_share: float = 0.01
    """A service's latency is kept by its p99: so large a part of its requests may be slower than the bound ..."""
    late_memory_s: float = 600.0
    """... over about this time."""
    margin: float = 0.08
    """Part of the bound that is never given to a guest: what the guard's own delays and errors use up."""


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """How the host's step time alone is learned."""

    steps: int = 8
    """So many steps without a guest make a baseline; with 3 % of noise they leave an error of 1 %."""
    wait_s: float = 30.0
    """A host that is not heard for so long has no heartbeat, and one with long steps is taken with ..."""
    few_steps: int = 3
    """... so many of them."""
    every_s: float = 300.0
    """The guest is paused after so long without a pause, so that a host whose step changed is seen."""
    error: float = 0.006
    """A pause goes on until the baseline is known to this, at most ..."""
    pause_s: float = 10.0
    """... this long (a peer of the guest that waits for it must not run into a time-out)."""
    memory_s: float = 900.0
    """Time after which a step counts 1/e of a new one."""
    noise_floor: float = 0.003
    """Nothing is believed to be steadier than this."""
    noise_guess: float = 0.03
    """Noise of a step before it is measured."""
    outlier: float = 6.0
    """Steps so many standard deviations above the baseline do not enter it."""


@dataclass(frozen=True, slots=True)
class AimdSettings:
    """The default law: feed-forward from the slope, trimmed by feedback.

    The slope is the host's slowdown at full duty of its guest; the predictor gives a first value.
    """

    slope_error: float = 0.06
    """Standard error of the predictor's slope."""
    confidence: float = 1.0
    """A slope counts as high as its estimate plus so many standard errors when the guest climbs."""
    caution: float = 2.0
    """The same, when the guest may jump at once."""
    memory_s: float = 60.0
    """Time after which a beat counts 1/e of a new one in the slope."""
    raise_step: float = 0.05
    """Additive increase of the duty."""
    raise_factor: float = 1.5
    """Slow start's increase (TGS), used where it is the larger one."""
    raise_every_s: float = 1.0
    """Time between increases, and never less than ..."""
    raise_after: float = 1.5
    """... this many times what it takes until the host's answer to the last one is heard."""
    dead_band: float = 0.12
    """Relative change of duty below which nothing is done: it keeps actions few."""
    cut: float = 0.5
    """Multiplicative decrease at an alarm, at least."""
    alarm_slack: float = 0.9
    """Page's test for harm that grows: what one beat may exceed, in standard deviations."""
    false_alarm_s: float = 110.0
    """The same test: mean time between false alarms. It sets the threshold by how often the host is heard."""
    long_step_s: float = 0.67
    """A host with longer steps has said little by the time that the guard has to react: ..."""
    long_false_alarm_beats: float = 60.0
    """... its false alarms may come after so few beats, on average."""
    harmless_alarm_s: float = 14_400.0
    """The same for a host that its largest burst would not harm beyond the bound."""
    calm_slack: float = 0.35
    """The same test for harm that falls: a mistake costs little here, so smaller changes are seen."""
    false_calm_beats: float = 150.0
    """Beats between false alarms of this kind."""
    largest_residual: float = 8.0
    """One stalled step counts no more than this many standard deviations."""
    burst_reserve: float = 2.5
    """The demand of a host whose bursts are not known yet may grow by this factor at any moment."""
    smallest_burst: float = 1.2
    """A host whose bursts are known is still trusted no more than this, ..."""
    largest_burst: float = 4.0
    """... and no burst larger than this is reckoned with."""
    burst_memory_s: float = 600.0
    """Time after which a burst is forgotten to 1/e."""
    certain: float = 0.3
    """A slope enters that memory once its relative error is below this ..."""
    certain_beats: int = 5
    """... and so many beats agree: a single stalled step is no burst."""
    late_reserve: float = 0.5
    """Part of a service's late requests after which bursts may cost nothing any more."""
    least_target: float = 0.2
    """However poor the baseline, the guest may spend this part of the bound: it must be seen to be learned from."""
    reaction_s: float = 0.4
    """What the guard adds to the host's own step and the age of its heartbeat before a cut is felt."""


@dataclass(frozen=True, slots=True)
class TgsSettings:
    """TGS's law with the constants of its code."""

    window_s: float = 5.0
    """The host's rate of work is taken over so long; one such window is a round."""
    profile_rounds: int = 5
    """Rounds with the guest at rest before it may begin."""
    tolerance: float = 0.03
    """Relative fall of the host's rate that counts as none."""
    full_rate: float = 100_000.0
    """Blocks in 50 ms that a guest launches at full duty: TGS counts blocks, the gate knows duty."""
    start_limit: float = 20_000.0
    """The guest's first limit, in blocks in 50 ms; ..."""
    smallest_step: float = 1_000.0
    """... no change of it is smaller than this."""
    raise_share: float = 0.00025
    """Additive increase, as a share of the host's highest rate."""
    lower_share: float = 0.08
    """Decrease, as a share of the limit."""
    slow_start: float = 1.5
    """Factor of increase in slow start."""
    collapse: float = 10.0
    """The limit is divided by this where the host's rate fell by three tolerances, and slow start begins anew."""
    lost_tolerance: float = 0.12
    """Where the rate stays this far from the highest ..."""
    lost_rounds: int = 20
    """... for so many rounds, the highest is no longer believed."""


@dataclass(frozen=True, slots=True)
class AntmanSettings:
    """AntMan's duty cycle as a coordinator would set it."""

    every_s: float = 5.0
    """A period."""
    harm: float = 0.05
    """Above it the duty is halved ..."""
    calm: float = 0.02
    """... and below it for so many periods ..."""
    calm_periods: int = 3
    raise_step: float = 0.05
    """... the duty grows by this."""
    start: float = 0.10
    """The guest's first duty."""
    floor: float = 0.05
    """Its smallest duty but none."""
    bad_periods: int = 3
    """After so many bad periods at the floor the guest is suspended."""


@dataclass(frozen=True, slots=True)
class PiSettings:
    """A proportional-integral law on the slowdown."""

    every_s: float = 1.0
    """Time between changes of the duty."""
    target: float = 0.03
    """The slowdown that it keeps."""
    proportional: float = 2.0
    """Duty per unit of error."""
    integral: float = 0.8
    """Duty per unit of error and second."""
    smoothing_s: float = 2.0
    """Time constant of the slowdown that it looks at."""


@dataclass(frozen=True, slots=True)
class MuxflowSettings:
    """MuxFlow's share by complement and its launch control, for hosts that report nothing."""

    margin: float = 0.10
    smallest: float = 0.10
    largest: float = 0.90
    """The guest's share: what the host's highest SM activity and the margin leave, kept between these."""
    utilisation: float = 0.95
    """Launch control: more launches below it, fewer above it."""
    clock: float = 0.85
    """Fewer launches while the device holds its clock below this share of the highest."""
    gain: float = 0.2
    """Change of the launches a second, per unit of utilisation that is missing."""
    cut: float = 0.5
    """Factor of the launches while the clock is held down."""
    floor: float = 0.05
    """Launches are never held back below this."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """When a GPU may take a guest, keep it, or must shed it; MuxFlow's state machine."""

    healthy_utilisation: float = 0.80
    healthy_sm_active: float = 0.60
    healthy_clock: float = 0.85
    healthy_memory: float = 0.85
    """Healthy is below all of these (the clock: above), without a guest or as long as no heartbeat is heard."""
    over_utilisation: float = 0.95
    over_sm_active: float = 0.85
    """Both above: the GPU is over its limit, where no heartbeat says that the host bears it."""
    over_clock: float = 0.70
    """A clock held below this by power or heat."""
    over_memory: float = 0.95
    admit_s: float = 60.0
    """Healthy samples in a row before a guest is admitted."""
    leave_s: float = 5.0
    """Samples in a row that are not healthy before the GPU is Unhealthy."""
    shed_s: float = 2.0
    """Samples in a row over the limit before the guest goes."""
    cool_down_s: float = 60.0
    """First time out after Overlimit; doubled by each one of the last day, up to ..."""
    longest_cool_down_s: float = 3600.0
    forgive_s: float = 3600.0
    """A quiet hour takes one doubling back."""
    silent_s: float = 15.0
    """Without a sample for so long, the device is not trusted."""


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """How far the guard goes, and when."""

    gate_lag_s: float = 0.05
    """A new duty reaches the guest after this."""
    drain_s: float = 0.1
    """Work that a guest has queued when it is stopped runs on for this long."""
    answer_s: float = 2.0
    """A guest's gate that does not answer for so long is replaced by the freezer."""
    silent_host_s: float = 10.0
    """A host that ends no step for this and three steps more is not judged by its steps any more."""
    silent_duty: float = 0.10
    """Duty, at most, of a guest whose host fell silent."""
    evict_grace_s: float = 30.0
    """Time that a guest gets to save its work when the GPU can bear it no longer; the host is safe at once."""
    end_s: float = 6.0
    """A guest that still runs so long after its end is requeued by Slurm."""
    ask_s: float = 1.0
    """berthd and Slurm get this long to put an ended guest back into the queue before ..."""
    term_s: float = 1.5
    """... its processes get SIGTERM and, after this, SIGKILL."""
    freeze_slot_s: float = 0.2
    """A guest whose gate does not answer runs or is frozen for this long at a time."""
    host_bound_mib: float = 16_384.0
    """Host memory that a guest may pin to give device memory back."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """All of them."""

    law: str = "aimd"
    """The control law for hosts with a heartbeat: aimd, tgs, antman, pi, or open for none."""
    slope: float = 0.3
    """Speed that a host loses to a guest whose slope nobody predicted, at full duty: 0 to 1."""
    metrics: str = ""
    """A file for node_exporter's textfile collector, such as /var/lib/node_exporter/berth.prom."""
    tell_every_s: float = 60.0
    """berthd is told each GPU's state so often, changed or not, so that a new berthd knows."""
    bound: BoundSettings = field(default_factory=BoundSettings)
    baseline: BaselineSettings = field(default_factory=BaselineSettings)
    aimd: AimdSettings = field(default_factory=AimdSettings)
    tgs: TgsSettings = field(default_factory=TgsSettings)
    antman: AntmanSettings = field(default_factory=AntmanSettings)
    pi: PiSettings = field(default_factory=PiSettings)
    muxflow: MuxflowSettings = field(default_factory=MuxflowSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    action: ActionSettings = field(default_factory=ActionSettings)


def settings_from(section: Mapping[str, object], where: str = "[guard]") -> GuardSettings:
    """The settings of a `[guard]` section; ConfigError names a key that is unknown and the nearest right one."""
    return _filled(GuardSettings(), section, where)


_Table = TypeVar("_Table")


def _filled(table: _Table, section: Mapping[str, object], where: str) -> _Table:
    """The table with its defaults replaced by what the section says."""
    known = {one.name: getattr(table, one.name) for one in fields(table)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for key, value in section.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"
            raise ConfigError(f"{where} has no key {key}{hint}")
        changed[key] = _value(known[key], value, f"{where} {key}")
    return replace(table, **changed)  # type: ignore[type-var]


def _value(default: object, value: object, where: str) -> object:
    if is_dataclass(default):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is a table of keys, not {value!r}")
        return _filled(default, value, where)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise ConfigError(f"{where} is a word, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{where} is a number that is not negative, not {value!r}")
    if isinstance(default, int) and value != int(value):
        raise ConfigError(f"{where} is a whole number, not {value!r}")
    return type(default)(value)  # type: ignore[call-arg]
