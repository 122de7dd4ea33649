# SPDX-License-Identifier: Apache-2.0
"""The keys of berth.conf that berthd and the commands check.

Written by `make keys` from packaging/keys.toml: change that file.
"""

from typing import Any, NamedTuple


class Key(NamedTuple):
    """A key; bounds are of a number, or of a time in seconds."""

    kind: str
    default: Any = ""
    least: int | None = None
    most: int | None = None
    unit: str = ""
    words: tuple[str, ...] = ()


KEYS: dict[str, dict[str, Key]] = {
    "hook": {
        "socket": Key("path", "/run/berth/berthd.sock"),
        "deadline_ms": Key("int", 50, 1, 1000, "ms"),
        "breaker_seconds": Key("int", 5, 1, 3600, "s"),
        "fail": Key("word", "open", words=("open", "closed")),
        "skip_partitions": Key("list"),
        "skipped_shards": Key("word", "refuse", words=("refuse", "site")),
        "def_cpu_per_gpu": Key("int", 0, 0, 1024, "CPUs"),
        "layout": Key("word", "exact", words=("exact", "plain")),
        "message": Key("word", "flags", words=("always", "flags", "never")),
        "hook_log": Key("path"),
        "pinned_file": Key("path", "/run/berth/pinned"),
    },
    "berthd": {
        "topology_dir": Key("text", "/etc/slurm/berth/topology"),
        "fabric": Key("text"),
        "scores": Key("text"),
        "steps": Key("path"),
        "costs": Key("path"),
        "policy": Key("text", "berth"),
        "mode": Key("word", "act", words=("act", "observe")),
        "tick_ms": Key("int", 1000, 50, None, "ms"),
        "locality_wait": Key("time", "10:00"),
        "locality_default": Key("text"),
        "locality_cap": Key("time", None),
        "pin_ahead": Key("bool", default=True),
        "look_ahead": Key("bool", default=True),
        "exclude_others": Key("int", 32, 0, None, "nodes"),
        "other_retries": Key("text", "auto_requeue, auto_resume_mode"),
        "end_idle": Key("text"),
        "gateway": Key("word", "auto", words=("auto", "pyslurm", "libslurm", "command")),
    },
    "notice": {
        "hosts": Key("list"),
        "port": Key("int", 6826, 1, 65_535),
        "munge_socket": Key("path"),
        "log": Key("path"),
    },
    "users": {
        "hosts": Key("list", "SlurmctldHost"),
        "port": Key("int", 6827, 1, 65_535),
    },
    "metrics": {
        "enabled": Key("bool", default=False),
        "address": Key("text", "127.0.0.1"),
        "port": Key("int", 6828, 1, 65_535),
        "token_file": Key("path"),
        "job_info": Key("bool", default=False),
    },
    "web": {
        "enabled": Key("bool", default=False),
        "options": Key("text"),
    },
    "sharing": {
        "multi_user": Key("bool", default=False),
        "way": Key("word", "mps", words=("mps", "time")),
        "gpu_mem_reserve": Key("size", "1G"),
        "tier_default": Key("text"),
        "tier_allowed": Key("text"),
        "guest_way": Key("word", "time", words=("time", "mps")),
        "guest_after": Key("time", None),
        "profiles": Key("path"),
        "fit": Key("path"),
        "unsure": Key("word", "try", words=("try", "wait")),
        "trials": Key("int", 50, 0, None, "a day"),
        "least_speed": Key("int", 80, 0, 100, "percent"),
        "company_wait": Key("time", "10"),
        "evict_grace": Key("int", 0, 0, 45, "s"),
        "evict_signal": Key("word", "USR1", words=("USR1", "USR2", "HUP", "INT", "TERM", "QUIT", "CONT")),
    },
    "moving": {
        "enabled": Key("bool", default=False),
        "grace": Key("int", 60, 0, None, "s"),
        "signal": Key("word", "USR1", words=("USR1", "USR2", "HUP", "INT", "TERM", "QUIT", "CONT")),
        "cost": Key("time", "5:00"),
        "restart": Key("int", 60, 0, None, "s"),
        "after": Key("time", "5:00"),
        "per_job": Key("int", 1, 1, None, "an hour"),
        "per_hour": Key("int", 12, 1, None, "an hour"),
    },
    "preflight": {
        "above": Key("int", 0, 0, 1_000_000, "GPUs"),
        "time": Key("time", "10:00", 1, 86_400),
        "wait": Key("time", "1:00:00", 1, 31_536_000),
        "partition": Key("list"),
    },
}
