# SPDX-License-Identifier: Apache-2.0
"""What Berth uses of Slurm, read from Berth's own sources: names in C, and words in texts."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from policy.report import rows
from policy.slurm.by_command import command, text
from policy.slurm.by_library import pyslurm_gateway

from .declarations import plain

ROOT = Path(__file__).resolve().parents[2]
C = tuple(sorted((ROOT / "slurm_plugins").rglob("*.[ch]")))
TEXT = ROOT / "policy" / "slurm" / "by_command" / "text.py"
STATES = (TEXT, ROOT / "policy" / "slurm" / "fields.py")
JSON = tuple(TEXT.with_name(name) for name in ("job_json.py", "json_records.py"))
WORD = re.compile(r"[A-Za-z_][\w/-]*")
VARIABLE = re.compile(r"_?(?:SLURM|SLURMD|SLURMCTLD|SPANK|CUDA)_\w+")


@dataclass(frozen=True)
class Uses:
    """What is looked for in Slurm's sources."""

    names: frozenset[str]
    """Identifiers in C."""
    members: frozenset[str]
    """Identifiers behind a dot or an arrow."""
    symbols: frozenset[str]
    """Names that the dynamic linker is asked for."""
    taken: Mapping[str, frozenset[str]]
    """Names of fields that Slurm's commands are given."""
    shown: frozenset[str]
    """Keys of records that scontrol prints."""
    node: frozenset[str]
    """Those of a node's record, which are read in their order."""
    json: frozenset[str]
    words: frozenset[str]
    """Names of variables in the environment, and states of jobs and nodes."""
    public: bool = False
    """True to look at all that the public headers declare, used by Berth or not."""


@functools.cache
def read_uses(*, public: bool = False) -> Uses:
    """Reads Berth's sources."""
    c = "\n".join(plain(path.read_text()) for path in C)
    python = (path for folder in ("policy", "prolog_epilog") for path in (ROOT / folder).rglob("*.py"))
    variables = {name for one in (c, *(path.read_text() for path in python)) for name in VARIABLE.findall(one)}
    states = {name for one in _constants(*STATES) for name in re.findall(r"\b[A-Z_]{4,}\b", one)}
    return Uses(
        names=frozenset(re.findall(r"\b[A-Za-z_]\w+", c)),
        members=frozenset(re.findall(r"(?:->|\.)\s*([A-Za-z_]\w*)", c)),
        symbols=frozenset(re.findall(r'dlsym\(RTLD_DEFAULT, "(\w+)"', c)),
        taken={
            "squeue -O": frozenset((*text._QUEUE_FIELDS, *pyslurm_gateway._REQUESTS)),
            "scontrol update": frozenset(command._KEYS.values()),
            "sacct -o": frozenset(rows.COLUMNS),
        },
        shown=frozenset(name for one in _constants(TEXT) for name in re.findall(r"\b([A-Z]\w+)=", one)),
        node=frozenset(re.findall(r"([A-Z]\w+)=", text._NODE.pattern)),
        json=frozenset(name for path in JSON for name in _json_keys(path)),
        words=frozenset(variables | states),
        public=public,
    )


def _constants(*paths: Path) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _json_keys(path: Path) -> Iterator[str]:
    """Returns the fields of the data classes by which Slurm's JSON is read."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            yield from (
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            )
