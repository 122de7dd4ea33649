# SPDX-License-Identifier: Apache-2.0
"""The keys of berth.conf that the guard reads.

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
