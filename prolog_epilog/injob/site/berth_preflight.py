"""Makes a Python launcher of many processes start one, within a pre-flight (docs/preflight.md).

Users' Pythons read this file: only the standard library, and no newer syntax than Python 3.10 has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_ONE = {
    "torchrun": ["--nnodes=1", "--nproc-per-node=1", "--node-rank=0"],
    "accelerate": ["--num_processes=1", "--num_machines=1", "--machine_rank=0"],
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}


def one_process(words: Sequence[str], original: Sequence[str]) -> list[str]:
    """Returns the changed `sys.argv` of a launcher: of two values of an option the later one counts.

    A launcher is known by its name, or as `python -m MODULE` by the words that started Python. The words from the
    program on, a Python file or a module, are the program's own.

    >>> one_process(["/env/bin/torchrun", "--nnodes=4", "train.py", "--nnodes=4"], ["python"])
    ['/env/bin/torchrun', '--nnodes=4', '--nnodes=1', '--nproc-per-node=1', '--node-rank=0', 'train.py', '--nnodes=4']
    """
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - no pathlib in jobs
    if name == "-m" and "-m" in original[:-1]:
        name = _MODULES.get(original[original.index("-m") + 1], "")
    program = 1
    while program < len(words) and not (words[program].endswith(".py") or words[program] in {"-m", "--module"}):
        program += 1
    if name not in _ONE or program >= len(words):
        return list(words)
    own = [word for word in words[:program] if word.replace("_", "-") != "--multi-gpu"]
    return [*own, *_ONE[name], *words[program:]]
