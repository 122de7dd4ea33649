# SPDX-License-Identifier: Apache-2.0
"""The keys of berth.conf that the guard reads, and those that are gone.

Written by `make keys` from packaging/keys.toml: change that file.
A number has its least and its greatest value beside it, a text its choices, or `path`.
"""

from typing import Annotated, NamedTuple


class NoticeTable(NamedTuple):
    """The table [notice]: How a node's Epilog and guard tell berthd what happens."""

    hosts: str = ""
    port: Annotated[int, (1, 65535)] = 6826
    munge_socket: Annotated[str, "path"] = ""


class BoundSettings(NamedTuple):
    """The table [guard.bound]: The promise to hosts."""

    slowdown: Annotated[float, (0, 1)] = 0.05


class MachineSettings(NamedTuple):
    """The table [guard.machine]: When a GPU may take a guest, keep it, or must shed it."""

    healthy_clock: Annotated[float, (0, 1)] = 0.85
    healthy_memory: Annotated[float, (0, 1)] = 0.85
    over_clock: Annotated[float, (0, 1)] = 0.7
    over_memory: Annotated[float, (0, 1)] = 0.95
    admit_s: Annotated[float, (0, None)] = 60.0
    cool_down_s: Annotated[float, (0, None)] = 60.0


class ActionSettings(NamedTuple):
    """The table [guard.action]: How far the guard goes, and when."""

    silent_host_s: Annotated[float, (0, None)] = 10.0
    evict_grace_s: Annotated[float, (0, None)] = 30.0
    host_bound_mib: Annotated[float, (0, None)] = 16384.0


class GuardSettings(NamedTuple):
    """The table [guard]: What berth-guard goes by."""

    metrics: Annotated[str, "path"] = ""
    bound: BoundSettings = BoundSettings()
    machine: MachineSettings = MachineSettings()
    action: ActionSettings = ActionSettings()


GONE = (
    ("node", "static_partitions", "MPS's percentages hold shares on each driver"),
    ("guard", "law", "hosts with a heartbeat have one law; slowdown in [guard.bound] says what they may lose"),
    ("guard", "slope tell_every_s", "it is a constant now"),
    (
        "guard.bound",
        "window_s late_share late_memory_s margin",
        "it is a constant of the law now; slowdown says what hosts may lose",
    ),
    (
        "guard.baseline",
        "steps wait_s few_steps every_s error pause_s memory_s noise_floor noise_guess outlier",
        "it is a constant now",
    ),
    (
        "guard.aimd",
        (
            "slope_error confidence caution memory_s raise_step raise_factor raise_every_s raise_after dead_band cut "
            "alarm_slack false_alarm_s long_step_s long_false_alarm_beats harmless_alarm_s calm_slack "
            "false_calm_beats largest_residual burst_reserve smallest_burst largest_burst burst_memory_s certain "
            "certain_beats late_reserve least_target reaction_s"
        ),
        "it is a constant of the law now; slowdown in [guard.bound] says what hosts may lose",
    ),
    ("guard.muxflow", "margin smallest largest utilisation clock gain cut floor", "it is a constant of the law now"),
    (
        "guard.machine",
        (
            "healthy_utilisation healthy_sm_active over_utilisation over_sm_active leave_s shed_s longest_cool_down_s "
            "forgive_s silent_s"
        ),
        "it is a constant now",
    ),
    (
        "guard.action",
        "gate_lag_s drain_s answer_s silent_duty end_s ask_s term_s freeze_slot_s",
        "it is a constant now",
    ),
)
"""Keys of an earlier release, by table, and what to do."""
