# SPDX-License-Identifier: Apache-2.0
"""The whole job_submit plugin, built so that it counts its steps, and the texts that make it work hardest.

A step is a basic block of the plugin, or a byte that libc goes through for it. The number of steps is the same on each
machine, whatever else runs there.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import building
from tests.examples import SEED
from tests.unit.plugin_whole import FAKE, SOURCES, sources_of

WORK = FAKE.parents[1] / "work" / "work.c"
_DEFINED = re.compile(r"^(?:COUNTED\([^,]+, |FINDS\()(\w+),|^\w+ \*?__wrap_(\w+)\(.*\);", re.MULTILINE)
_CONSTANT = {
    *(
        "calloc",
        "clock_gettime",
        "close",
        "connect",
        "dlsym",
        "dprintf",
        "fclose",
        "feof",
        "ferror",
        "fopen",
        "fputc",
        "fread",
    ),
    *("free", "fstat", "getenv", "geteuid", "getrandom", "getsockopt", "malloc", "open", "poll", "ppoll", "pread"),
    *("pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock", "recv", "send"),
    *("socket", "write", "abort", "vfprintf", "qsort", "bsearch", "strtoull", "strerror", "stderr"),
    # Of berthd's file on one job, which is read up to a bound.
    *("access", "read", "rename", "strsep"),
}
"""What libc does in a time that no user's text makes longer, and sorting and searching, which call the plugin back."""


@functools.cache
def counting(headers: Path) -> ctypes.CDLL:
    """Builds the plugin for one Slurm, with its counters."""
    wrapped = [one or other for one, other in _DEFINED.findall(WORK.read_text())]
    counter = building.built("libwork.so", [WORK], (), ("-fPIC", "-shared"))
    names = [name for key in ("JOB_SUBMIT_SRCS", "PURE") for name in sources_of(key)]
    flags = ("-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic", "-fno-builtin", "-fsanitize-coverage=trace-pc")
    wraps = [f"-Wl,--wrap={name}" for name in wrapped]
    sources = [FAKE, *(SOURCES / name for name in names), counter]
    target = building.built("plugin-work.so", sources, (SOURCES, headers), (*flags, *wraps))
    built = ctypes.CDLL(str(target), mode=os.RTLD_GLOBAL)
    built.fake_job.restype = ctypes.c_void_p
    return built


@functools.cache
def counter() -> ctypes.CDLL:
    """The counters themselves."""
    built = ctypes.CDLL(str(building.built("libwork.so", [WORK], (), ("-fPIC", "-shared"))))
    built.work_done.restype = ctypes.c_uint64
    return built


def uncounted(headers: Path) -> set[str]:
    """Functions of libc that the plugin calls, that may take long, and that nothing counts."""
    counting(headers)
    newest = max((building.KEPT / "plugin-work.so").rglob("plugin-work.so"), key=lambda path: path.stat().st_mtime_ns)
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(newest)], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    return {name for name in names if not name.startswith("_")} - _CONSTANT


NODES = ("n1", "n[1-9]", "n[1-999999999]", "[", "]", ",", "-", "n", "0", "999999999")
TRES = (
    *("gres/gpu:1", "gres/gpu", "gpu", "gres", "/", ":", "=", ",", "gres/gpu:a100:2", "gres/shard:1", "gresgres/gpu"),
    *("a", "1", "1k", "gres/gpu:h100=", "GRES", "cpu=1"),
)
WORDS = ("a", ",", "x,", " ", "\t", "of12345", "plain", "cpu", "é", "%", "[", "]")
GRAMMAR: Mapping[str, tuple[str, ...]] = {
    "account": WORDS,
    "admin_comment": ("[berth/1 ", "]", "[", "[berth/", "a", " "),
    "argv": ("a", "-Q", " ", "train.sh", "\n", "--parsable"),
    "array_inx": ("1", "-", ",", "%", "1-9"),
    "cpus_per_tres": TRES,
    "dependency": ("afterok:", "afterany:", "1", ",", "?", ":"),
    "environment": (
        *("SLURM_GRES=", "SLURM_GPUS=", "a100:2,", "gres/gpu:a100:2,", "SLURM_GPUS_HET_GROUP_", "1", "=", "\n", "A"),
        *("_SLURM_SPANK_OPTION_berth_", "SLURM_SPANK_", "_PACK_GROUP_"),
    ),
    "exc_nodes": NODES,
    "extra": ("[berth/", "[berth/1 ", "[", "]", "a", " "),
    "features": ("a", "&", "|", ",", "(", ")", "[", "]", "*", "2"),
    "job_size_str": ("1", ",", "-", ":"),
    "licenses": ("berth_", "berth_a100", ":", "1", ",", ";", "|", "@", "a", " "),
    "mem_per_tres": TRES,
    "name": WORDS,
    "partition": ("plain", "cpu", "a", ",", " ", "gpu"),
    "prefer": ("a", "&", "|", ","),
    "qos": WORDS,
    "req_nodes": NODES,
    "reservation": WORDS,
    "script": (
        "#SBATCH",
        "#",
        " ",
        "\n",
        "\t",
        "-",
        "-H",
        "--wrap",
        "--parsabl",
        " #",
        "a",
        "#SBATCH\n",
        "#!/bin/sh\n",
    ),
    "spank_job_env": ("_SLURM_SPANK_OPTION_berth_", "retry=", "1", "\n", "BERTH_PREFLIGHT_JOB=", "a"),
    "submit_line": ("sbatch", " ", "--test-only", "--test-onl", "-H", "--wrap", "a", "\n", "\t", "--parsabl", "salloc"),
    "tres_bind": ("gres/gpu:per_task", "gres/gpu:", "per_tas", "a", "g"),
    "tres_freq": ("gpu:", "a"),
    "tres_per_job": TRES,
    "tres_per_node": TRES,
    "tres_per_socket": TRES,
    "tres_per_task": TRES,
}
"""What the texts of a field are made of: whatever its readers look for, and what is nearly that."""

WORST: Mapping[str, tuple[str, ...]] = {
    "script": ("#SBATCH\n", "#SBATCH -H", "#", "\n", " ", "#SBATCH #\n", "#SBATCH --wrap -"),
    "submit_line": (" --test-only", "a ", " ", "--test-onlyx"),
    "partition": ("cpu,", "plain,"),
    "licenses": ("a,", ",", "a"),
    "features": ("a&", "(", "a|"),
    "admin_comment": ("[berth/1 ", "[berth/1 ]", "["),
    "tres_per_node": ("gres", "gres/gpu:1,", ",", "gresgres/gpu:", "a,"),
    "environment": ("SLURM_GPUS_HET_GROUP_", "A\n", "SLURM_GRES=gres/gpu:a100:1,\n"),
}
"""Texts that some reader would go through again and again."""


def texts(field: str, drawn: int) -> Iterator[str]:
    """Yields what is repeated to make a field's texts: the known worst, each word of its grammar, and a few drawn."""
    known = dict.fromkeys((*WORST.get(field, ()), *GRAMMAR[field]))
    yield from known
    draw = random.Random(f"{SEED}-{field}")
    for _ in range(drawn):
        yield "".join(draw.choices(GRAMMAR[field], k=draw.randint(2, 6)))


def repeated(period: str, size: int) -> str:
    """A text of about this length, which always ends alike."""
    return period * max(1, size // len(period))
