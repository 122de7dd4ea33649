"""Makes launchers of many processes start one: changes the words of torchrun, accelerate, deepspeed and mpirun.

Only the words before the program are changed; the program's own words stay. Users' Pythons read this file too: only the
standard library, and no newer syntax than Python 3.10 has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

HERE = "BERTH_PREFLIGHT"
"""Environment variable of a pre-flight: its value is 1."""

_TORCHRUN_FLAGS = frozenset(
    {"--standalone", "-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"}
)
_MPI_VALUES = frozenset(
    {
        *("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-x", "-wdir"),
        *("--wdir", "-wd", "--path", "--prefix", "-genvlist", "--bind-to", "-bind-to", "--rank-by", "--report-uri"),
        *("-output-filename", "--output-filename", "--timeout", "-iface", "--tune", "-am", "--app"),
    }
)
_MPI_TWO_VALUES = frozenset({"-mca", "--mca", "-gmca", "--gmca", "--prtemca", "-genv", "-env"})
_MPI_COUNTS = frozenset({"-np", "--np", "-n", "--n", "-c"})
_MPI_LAYOUTS = frozenset(
    {"-N", "-npernode", "--npernode", "-ppn", "-perhost", "--map-by", "-map-by", "-npersocket", "--npersocket"}
)


def cut(name: str, words: Sequence[str]) -> list[str]:
    """Returns the words of a launcher, changed so that it starts one process here.

    >>> cut("torchrun", ["--nnodes=4", "--nproc-per-node", "8", "train.py", "--nnodes=4"])
    ['--nnodes=1', '--nproc-per-node=1', '--node-rank=0', 'train.py', '--nnodes=4']
    >>> cut("mpirun", ["-np", "32", "-N", "8", "./train", "-np", "5"])
    ['-np', '1', './train', '-np', '5']
    """
    return _CUTTERS[name](list(words)) if name in _CUTTERS else list(words)


def _torchrun(words: list[str]) -> list[str]:
    own, program = _split(words, _TORCHRUN_FLAGS)
    kept = _without(own, {"nnodes", "nproc-per-node", "node-rank"})
    return ["--nnodes=1", "--nproc-per-node=1", "--node-rank=0", *kept, *program]


def _accelerate(words: list[str]) -> list[str]:
    if words[:1] != ["launch"]:
        return words
    own, program = _up_to_script(words[1:])
    kept = _without(own, {"num-processes", "num-machines", "machine-rank"})
    kept = [word for word in kept if word.replace("_", "-") != "--multi-gpu"]
    return ["launch", "--num_processes=1", "--num_machines=1", "--machine_rank=0", *kept, *program]


def _deepspeed(words: list[str]) -> list[str]:
    own, program = _up_to_script(words)
    kept = _without(own, {"num-gpus", "num-nodes", "hostfile", "include", "exclude", "node-rank", "launcher"})
    kept = _without(kept, {"H", "i", "e"}, dashes="-")
    return ["--num_gpus=1", "--num_nodes=1", *kept, *program]


def _mpirun(words: list[str]) -> list[str]:
    kept: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, is_one_word, _ = word.partition("=")
        values = 2 if word in _MPI_TWO_VALUES else int(word in _MPI_VALUES | _MPI_COUNTS | _MPI_LAYOUTS)
        if name not in _MPI_COUNTS | _MPI_LAYOUTS or (is_one_word and not name.startswith("--")):
            kept += words[at : at + 1 + values]
        at += 1 + values
    return ["-np", "1", *kept, *words[at:]]


def _split(words: list[str], flags: frozenset[str]) -> tuple[list[str], list[str]]:
    """Splits words into a launcher's own and those from its program on; each option that is no flag has a value."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 1 if words[at] in flags or "=" in words[at] else 2
    return words[:at], words[at:]


def _up_to_script(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits words if it is not known which options have values: the program is a Python file, or a module."""
    at = 0
    while at < len(words) and not (words[at].endswith(".py") or words[at] in {"-m", "--module", "--"}):
        at += 1
    return words[:at], words[at:]


def _without(words: list[str], names: set[str], dashes: str = "--") -> list[str]:
    """Returns the words without these options and their values; `_` is as good as `-` in them."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        name, is_one_word, _ = word.partition("=")
        if name.startswith(dashes) and name[len(dashes) :].replace("_", "-") in names:
            skip = not is_one_word
            continue
        kept.append(word)
    return kept


_CUTTERS = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "mpirun": _mpirun,
    "mpiexec": _mpirun,
    "orterun": _mpirun,
    "prterun": _mpirun,
}
NAMES = tuple(_CUTTERS)

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}


def cut_own_words(words: list[str], original: Sequence[str]) -> list[str]:
    """Returns the changed `sys.argv` of a Python that is a launcher, by its name or as `python -m MODULE`.

    This does not depend on PATH.

    >>> cut_own_words(["-m", "--nnodes=4", "t.py"], ["python", "-m", "torch.distributed.run", "--nnodes=4", "t.py"])
    ['-m', '--nnodes=1', '--nproc-per-node=1', '--node-rank=0', 't.py']
    """
    if not words:
        return words
    if words[0] == "-m":
        at = original.index("-m") + 1 if "-m" in original else len(original)
        module = original[at] if at < len(original) else ""
        name = _MODULES.get(module, "")
        if name == "accelerate":
            return [words[0], *cut(name, ["launch", *words[1:]])[1:]]
    else:
        name = os.path.basename(words[0])  # noqa: PTH119 - no pathlib in jobs
        if name in {"mpirun", "mpiexec", "orterun", "prterun"}:
            return words
    return [words[0], *cut(name, words[1:])]
