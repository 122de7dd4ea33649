# SPDX-License-Identifier: Apache-2.0
"""Legal requests and changes, mutated: what nobody thought of when the table was written."""

from __future__ import annotations

import random
import shlex
from collections.abc import Sequence

from .attacks import FORGED, LINE, SEGMENT, Attack

_KINDS = ("gpu", "shard", "seat", "xgpu", "mps", "gres/seat", "gres:shard", "gpu ", "GPU", "gres/gres/seat")
_TYPES = ("", ":g0", ":g7", ":g64", ":v100", ":", ":g0:g1", ":G0", ":g00", ":'")
_NUMBERS = ("", ":1", ":2", ":0", ":-1", ":100", ":1k", ":0x1", ":1.0", ":99999999999", "=1", ":1:1", "*2", ":*")
_PREFIXES = ("", "", "", "gres/", "gres:", "xgres/", "gres/nic:", ",", "cpu=1,", "x,", "gres/gres/", " ")
_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task", "cpus-per-gpu")
_FIELDS = (
    *("TresPerNode", "TresPerJob", "TresPerSocket", "TresPerTask", "Gres", "CpusPerTres", "MemPerTres", "TresBind"),
    *("TresFreq", "Licenses", "Extra", "Comment", "JobName", "Features", "ReqNodeList", "NumNodes", "NumTasks"),
    *("BurstBuffer", "WCKey", "MailUser", "StdOut"),
)
_MORE = (
    *("-p plain", "-p gpu,plain", "-N2", "-n4", "--exclusive", "-H", "--begin=now+60", "--array=0-1", "--no-requeue"),
    *("--gpu-share=20", "--gpu-tier=opportunistic", "--gpu-tier=guaranteed", "--gpu-share=5 --gpu-mem=1G", "-w n4"),
    *("--sockets-per-node=1", "--mem-per-gpu=10", "--gpu-bind=single:1", "--requeue", "--overcommit", "-C v100"),
)
_TEXTS = (
    SEGMENT,
    FORGED.replace("\\n", "\n"),
    "a\033]0;owned\007\r\n\x9b2J" + LINE,
    "[berth/",
    "[berth/1 ]",
    "]",
    "\n[berth/1 gpus=0]",
    "%5Bberth/1 gpus=0%5D",
    "",
)


def tres(dice: random.Random) -> str:
    """A request for GPUs, or something like one; one in three has a second element."""
    one = dice.choice(_PREFIXES) + dice.choice(_KINDS) + dice.choice(_TYPES) + dice.choice(_NUMBERS)
    return f"{one},{tres(dice)}" if not dice.randrange(3) else one


def submission(dice: random.Random) -> Attack:
    """A batch job with one to three odd requests."""
    words = [f"--{dice.choice(_OPTIONS)}={tres(dice)}" for _ in range(dice.randint(1, 2))]
    words += shlex.split(" ".join(dice.sample(_MORE, dice.randint(0, 3))))
    if not dice.randrange(3):
        words.append(
            f"--{dice.choice(('extra', 'comment', 'job-name', 'network', 'wckey', 'bb'))}={dice.choice(_TEXTS)}"
        )
    command = shlex.join(["sbatch", "-n1", "-t", "1", "-o", "/dev/null", *words, "--wrap", "sleep 1"])
    return Attack(command, command)


def change(dice: random.Random, jobs: Sequence[str]) -> Attack:
    """One or two changes of a job of her own in one update, sometimes beside a harmless one."""
    words = []
    for field in dice.sample(_FIELDS, dice.randint(1, 2)):
        free = field in {"Extra", "Comment", "JobName", "BurstBuffer", "WCKey", "MailUser", "StdOut"}
        words.append(f"{field}={dice.choice(_TEXTS) if free else tres(dice)}")
    if not dice.randrange(3):
        words.append(dice.choice(("Nice=0", "TimeLimit=1", "Partition=other", "StartTime=now")))
    command = f"scontrol update JobId=${dice.choice(jobs)} {' '.join(map(shlex.quote, words))}"
    return Attack(command, command)


def drawn(seed: int, count: int, jobs: Sequence[str]) -> list[Attack]:
    """So many of both, always the same for a seed."""
    dice = random.Random(seed)
    return [change(dice, jobs) if dice.randrange(2) else submission(dice) for _ in range(count)]
