# SPDX-License-Identifier: Apache-2.0
"""Requests as no stock command sends them: the job description is rewritten right before it goes to slurmctld.

`tests/fakes/raw_rpc` is preloaded into sbatch and scontrol for that. Whoever links libslurm can send the same.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.building import PLUGINS, ROOT, built
from tests.slurm.harness import Slurm

from .attacks import CONTROL, FORGED, SEGMENT, Attack
from .mutations import tres

SOURCE = ROOT / "tests" / "fakes" / "raw_rpc" / "raw_rpc.c"
PLACE = "/tmp/raw_rpc.so"

TEXTS = (
    *("account", "array_inx", "burst_buffer", "comment", "dependency", "exc_nodes", "extra", "features", "licenses"),
    *("name", "network", "partition", "prefer", "qos", "req_nodes", "reservation", "submit_line", "wckey", "work_dir"),
    *("admin_comment", "job_size_str"),
)
TRES = (
    *("cpus_per_tres", "mem_per_tres", "tres_bind", "tres_freq", "tres_per_job", "tres_per_node", "tres_per_socket"),
    "tres_per_task",
)
NUMBERS = (
    *("begin_time", "bitflags", "cpus_per_task", "deadline", "delay_boot", "end_time", "group_id", "het_job_offset"),
    *("max_cpus", "max_nodes", "min_cpus", "min_nodes", "nice", "ntasks_per_node", "ntasks_per_tres", "num_tasks"),
    *("pn_min_cpus", "pn_min_memory", "priority", "requeue", "req_switch", "restart_cnt", "segment_size", "shared"),
    *("site_factor", "sockets_per_node", "threads_per_core", "time_limit", "time_min", "user_id", "wait4switch"),
    *("warn_flags", "warn_signal", "warn_time"),
)
WORDS = ("argument", "environment", "spank_job_env")
LIMITS = (
    *(limit + more for limit in (1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63) for more in (-2, -1, 0, 1)),
    *(0, 1, (1 << 64) - 2, (1 << 64) - 1),
)
"""Slurm has special numbers at most of these."""

_OPTIONS = (
    *("BERTH_PREFLIGHT_JOB", "BERTH_PREFLIGHT_SECONDS", "BERTH_PREFLIGHT", "BERTH_SHARE_ASKED", "BERTH_GUEST"),
    *(
        f"_SLURM_SPANK_OPTION_berth_{name}"
        for name in ("gpu_share", "gpu_mem", "gpu_tier", "locality", "retry", "movable", "preflight", "scores")
    ),
    *("SLURM_JOB_ID", "SLURM_TRES_PER_TASK", "SLURM_GRES", "LD_PRELOAD"),
)
_VALUES = ("$V", "$W", "$F", "1", "0", "run", "99", "opportunistic", "4294967295", "-1", "", "x" * 3_000)
RAW = bytes(byte for byte in range(1, 256) if byte not in b"\n\x1e").decode("latin-1")
"""All bytes but the one that ends a field, and the one by which `world.carry_out` parts its answers."""


def library(slurm: Slurm) -> str:
    """Returns where the library is on the controller, built against the headers that came with its image."""
    major, minor = slurm.version
    headers = ROOT / "build" / "headers" / f"{major}.{minor:02}"
    if not headers.is_dir():
        pytest.skip(f"no headers of Slurm {major}.{minor:02} in build/headers")
    made = built("raw_rpc.so", [SOURCE], (PLUGINS, headers), ("-fPIC", "-shared", "-ldl"))
    _ship(slurm, made)
    return PLACE


def _ship(slurm: Slurm, made: Path) -> None:
    text = base64.b64encode(made.read_bytes()).decode()
    slurm.target.bash(
        f"base64 -d >{PLACE}.new <<'END' && chmod 755 {PLACE}.new && mv {PLACE}.new {PLACE}\n{text}\nEND", user="root"
    )


def raw(rewrites: Sequence[tuple[str, str]], command: str, refusal: str = "") -> Attack:
    """A command whose request is rewritten so; `$NAME` in a value is one of the attack's names."""
    lines = "\n".join(f"{field}={_escaped(value)}" for field, value in rewrites)
    told = f"{command.split(maxsplit=1)[0]} with {lines!r}"
    return Attack(told[:200], f'LD_PRELOAD={PLACE} RAW_RPC="{lines}" {command}', refusal)


def _escaped(value: str) -> str:
    # Each character stands for one byte, so that no text has to be one.
    parts = re.split(r"(\$[A-Z]\b)", value)
    parts[::2] = ("".join(f"%{byte:02x}" for byte in part.encode("latin-1", "replace")) for part in parts[::2])
    return "".join(parts)


def sbatch(rewrites: Sequence[tuple[str, str]], words: str = "--gpus=1", refusal: str = "") -> Attack:
    """A batch job."""
    return raw(rewrites, f"sbatch -n1 -t 1 -o /dev/null {words} --wrap 'sleep 1'", refusal)


def change(rewrites: Sequence[tuple[str, str]], job: str = "HELD", refusal: str = "") -> Attack:
    """A change of a job of hers that Slurm's own command calls harmless."""
    return raw(rewrites, f"scontrol update JobId=${job} Comment=x", refusal)


def _rewrite(dice: random.Random) -> tuple[str, str]:
    kind = dice.randrange(5)
    if kind == 0:
        return dice.choice(NUMBERS), str(dice.choice(LIMITS))
    if kind == 1:
        return dice.choice(TRES), tres(dice)
    if kind == 2:
        text = dice.choice(
            (SEGMENT, FORGED, CONTROL, RAW, "a" * 5_000, "plain", "gpu,plain", "", tres(dice), "$V", "n[1-4]")
        )
        return dice.choice(TEXTS), text
    if kind == 3:
        return dice.choice(("dependency", "dependency", "partition")), dice.choice(
            ("afterok:$V", "afterok:$W", "afternotok:$F", "singleton", "plain")
        )
    return dice.choice(WORDS), f"{dice.choice(_OPTIONS)}={dice.choice(_VALUES)}"


def drawn(seed: int, count: int, jobs: Sequence[str]) -> list[Attack]:
    """So many submissions and changes with one to four rewritten fields, always the same for a seed."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        rewrites = [_rewrite(dice) for _ in range(dice.randint(1, 4))]
        if dice.randrange(3):
            found.append(sbatch(rewrites, dice.choice(("--gpus=1", "--gpu-share=10", "", "-p plain", "-H --gpus=2"))))
        else:
            found.append(change(rewrites, dice.choice(jobs)))
    return found
