# SPDX-License-Identifier: Apache-2.0
"""The keys of berth.conf that each Prolog reads.

Written by `make keys` from packaging/keys.toml: change that file.
A number has its least and its greatest value beside it, a text its choices, or `path`.
This is no dataclass, because each Prolog waits for this file.
"""

from typing import Annotated, NamedTuple


class NodeConfig(NamedTuple):
    """The table [node]: What Prolog, Epilog and guard go by on the compute nodes."""

    chain_prolog: tuple[str, ...] = ()
    chain_epilog: tuple[str, ...] = ()
    chain_timeout: Annotated[int, (1, None)] = 300
    mps_control: Annotated[str, "path"] = "/usr/bin/nvidia-cuda-mps-control"
    mps_start_timeout: Annotated[float, (1, None)] = 60.0
    mps_stop_timeout: Annotated[float, (1, None)] = 20.0
    multi_user: bool = False
    violation: Annotated[str, ("warn", "terminate", "requeue")] = "warn"
    inject: Annotated[str, ("none", "library", "hooks", "all", "retry", "managed")] = "library"
    count_launches: bool = False
    inject_from: Annotated[str, "path"] = "/usr"
    jobs_for_dcgm: Annotated[str, "path"] = ""
    jobs_for_jobstats: Annotated[str, "path"] = ""
    log: Annotated[str, "path"] = ""
    failure_rules: tuple[str, ...] = ()
    scontrol: Annotated[str, "path"] = ""
    scontrol_timeout: Annotated[float, (1, None)] = 1.0
