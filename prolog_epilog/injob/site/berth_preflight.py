# SPDX-License-Identifier: Apache-2.0
"""Makes a Python launcher of many processes start one, within a pre-flight (docs/user/preflight.md).

Users' Pythons read this file: only the standard library, and no newer syntax than Python 3.10 has.
"""

from __future__ import annotations

import os
import re
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
_MODULE = re.compile(r"\0-[bBdEiIOPqRsSuvx]*m\0?([^\0]+)")
_TAKE_A_NAME = {"--log-dir", "--role", "--rdzv-id", "--rdzv-conf", "--config-file", "--deepspeed-config-file"}
"""Options of the launchers whose value, in a word of its own, may look like a program."""


def one_process(words: Sequence[str], original: Sequence[str]) -> list[str]:
    """Returns the changed `sys.argv` of a launcher: of two values of an option the later one counts.

    A launcher is known by its name, or as `python -m MODULE` by the words that started Python. The words from the
    program on, a Python file or a module, are the program's own.

    >>> one_process(["/env/bin/torchrun", "--nnodes=4", "train.py", "--nnodes=4"], ["python"])
    ['/env/bin/torchrun', '--nnodes=4', '--nnodes=1', '--nproc-per-node=1', '--node-rank=0', 'train.py', '--nnodes=4']
    """
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - no pathlib in jobs
    if name == "-m":
        module = _MODULE.search("\0".join(original))
        name = _MODULES.get(module[1], "") if module else ""
    program = 1
    while program < len(words) and not _is_program(words[program - 1], words[program]):
        program += 1
    if name not in _ONE or program >= len(words):
        return list(words)
    own = [word for word in words[:program] if word.replace("_", "-") != "--multi-gpu"]
    return [*own, *_ONE[name], *words[program:]]


def _is_program(before: str, word: str) -> bool:
    return word in {"-m", "--module"} or (word.endswith(".py") and before.replace("_", "-") not in _TAKE_A_NAME)
