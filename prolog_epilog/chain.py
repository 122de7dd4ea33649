# SPDX-License-Identifier: Apache-2.0
"""The site's own Prolog and Epilog scripts, run with the GPU variables that Slurm gives without typed GRES.

With one GRES type for each GPU, Slurm names only the last GPU of a job in SLURM_JOB_GPUS and its like.
"""

import glob
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prolog_epilog.errors import ChainError
from prolog_epilog.node import children

GPU_VARIABLES = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_OTHER_VENDORS = ("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_DEVICE = re.compile(r"nvidia(0|[1-9][0-9]{0,3})")


def minors(folder: str = "/dev") -> tuple[int, ...]:
    """Returns device minors by position: a GPU's position is its place among the device files, in minor order."""
    matches = (_DEVICE.fullmatch(name) for name in os.listdir(folder))  # noqa: PTH208 - pathlib costs 10 ms
    return tuple(sorted(int(match.group(1)) for match in matches if match))


def indices(gpus: Sequence[int], known: Sequence[int]) -> tuple[int, ...]:
    """Returns the indices that Slurm uses for GPUs (their minors); the position itself if no device file shows it."""
    return tuple(known[gpu] if gpu < len(known) else gpu for gpu in gpus)


def environment(base: Mapping[str, str], gpus: Sequence[int], facts: Mapping[str, str]) -> dict[str, str]:
    """Returns Slurm's own environment of a Prolog or Epilog with these GPUs, and Berth's facts beside them."""
    found = {**base, **facts}
    text = ",".join(map(str, gpus))
    # gres.conf says which of them Slurm sets (Flags=nvidia_gpu_env); a guest has none, since Slurm gave it no GPU.
    for name in [name for name in (*GPU_VARIABLES, *_OTHER_VENDORS) if name in base] or GPU_VARIABLES:
        if gpus:
            found[name] = text
        else:
            found.pop(name, None)
    return found


def scripts(patterns: Sequence[str], say: Callable[[str], None]) -> Iterator[str]:
    """Yields the programs that the patterns match, sorted within a pattern; reports and skips what cannot be run."""
    for pattern in patterns:
        # A path without a pattern stays even if nothing is there, so that it is reported.
        for path in sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]:  # noqa: PTH207
            problem = unfit(path)
            if problem:
                say(f"{path} is left out: {problem}")
            else:
                yield path


def unfit(path: str) -> str:
    """Returns the reason why root does not run this file; empty if it may."""
    try:
        status = os.stat(path)  # noqa: PTH116 - pathlib costs 10 ms
    except OSError as problem:
        return f"{problem.strerror}; mend [node] chain_prolog or chain_epilog in berth.conf"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a file"
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others than root may write it; chown root, chmod go-w"
    if not os.access(path, os.X_OK):
        return "it is not executable; chmod +x"
    return ""


def run(patterns: Sequence[str], surroundings: Mapping[str, str], seconds: float, say: Callable[[str], None]) -> None:
    """Runs the scripts in turn; the first that fails ends the chain with its exit status, as with Slurm."""
    due = time.monotonic() + seconds
    for path in scripts(patterns, say):
        try:
            ended = children.run([path], surroundings, max(0.0, due - time.monotonic()))
        except OSError as problem:
            raise ChainError(
                f"{path} cannot be run: {problem.strerror}; does its first line name a shell?", 127
            ) from None
        if ended.code:
            raise ChainError(f"{path} failed with exit status {ended.code}", ended.code)
