# SPDX-License-Identifier: Apache-2.0
"""Reads a site's configuration files, and the jobs that Slurm knows."""

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy.cli.migrate.conf_text import entries, value_of
from policy.cli.migrate.rungs import Texts, names_spank
from policy.cli.migrate.state import FileChange, content_of
from policy.formats.errors import BerthError

Printed = Callable[..., str]
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Files:
    """The paths and texts of a site's files."""

    slurm_conf: tuple[Path, ...]
    gres_conf: Path
    plugstack_conf: Path
    berth_conf: Path
    texts: Texts

    def changes(self, new: Texts) -> list[FileChange]:
        """Returns the files that differ."""
        paths = (*self.slurm_conf, self.gres_conf, self.plugstack_conf, self.berth_conf)
        old_ones, new_ones = (
            (*one.slurm_conf, one.gres_conf, one.plugstack_conf, one.berth_conf) for one in (self.texts, new)
        )
        return [
            FileChange(path, content_of(path), after.encode("utf-8", "surrogateescape"))
            for path, before, after in zip(paths, old_ones, new_ones, strict=True)
            if before != after
        ]


def read_files(slurm_conf: Path, berth_conf: Path) -> Files:
    """Reads the configuration; raises BerthError if a file cannot be read."""
    found: dict[Path, str] = {}
    folder = slurm_conf.parent
    _with_includes(slurm_conf, folder, found)
    texts = tuple(found.values())
    plugstack = Path(value_of(texts, "PlugStackConfig") or folder / "plugstack.conf")
    gres = folder / "gres.conf"
    # plugstack.conf includes each file by its path or a pattern.
    patterns = re.findall(r"^[ \t]*include[ \t]+(\S+)", _text(plugstack), re.MULTILINE | re.IGNORECASE)
    included = [path for pattern in patterns for path in glob.glob(str(plugstack.parent / pattern))]  # noqa: PTH207
    elsewhere = any(names_spank(_text(Path(path))) for path in included)
    read = Texts(texts, _text(gres), _text(plugstack), _text(berth_conf), elsewhere)
    return Files(tuple(found), gres, plugstack, berth_conf, read)


def _with_includes(path: Path, folder: Path, found: dict[Path, str]) -> None:
    """Reads a file and those that it includes, each once; a name without a folder is beside slurm.conf."""
    if path in found:
        return
    if content_of(path) is None:
        raise BerthError(f"{path} does not exist; set SLURM_CONF, or run this on a controller")
    found[path] = _text(path)
    cluster = value_of(found.values(), "ClusterName").lower()
    for entry in entries(found[path]):
        if match := _INCLUDE.fullmatch(entry.text):
            _with_includes(folder / match[1].replace("%c", cluster), folder, found)


def _text(path: Path) -> str:
    return (content_of(path) or b"").decode("utf-8", "surrogateescape")


def jobs_on(printed: Printed, nodes: str) -> list[str]:
    """Returns the jobs that hold resources on these nodes."""
    words = ("squeue", "-h", "-a", "-w", nodes, "-t", "R,S,CG,ST,CF,SI,SO", "-o", "%A")
    return sorted(set(printed(*words).split()), key=int)


def sharing_jobs(printed: Printed, states: str, nodes: Sequence[str] = ()) -> list[str]:
    """Returns the jobs in these states that share GPUs, on these nodes or anywhere.

    A site may track no GRES but gpu, so the request counts too. Whole GPUs come with a seat; a guest has only a seat.
    """
    where = ("-w", ",".join(nodes)) if nodes else ()
    form = "JobID:20,tres-alloc:1000,tres-per-node:1000,tres-per-job:1000"
    found: dict[str, bool] = {}
    for line in printed("squeue", "-h", "-a", *where, "-t", states, "-O", form).splitlines():
        job, requested = line[:20].strip(), line[1020:]
        guest = "gres/seat" in requested and "gres/gpu" not in requested
        found[job] = "gres/shard" in line or guest
    return [job for job, shares in found.items() if shares]
