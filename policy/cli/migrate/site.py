"""Reads what a site has: its configuration files, and what Slurm says of itself where it answers."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from policy.cli.migrate.conf_text import entries, value_of
from policy.cli.migrate.drained import DrainState, node_states
from policy.cli.migrate.rungs import Texts, names_spank
from policy.cli.migrate.state import FileChange, content_of
from policy.formats.errors import BerthError, SlurmError
from policy.formats.slurm_facts import Reservation
from policy.slurm.by_command.text import reservations

__all__ = ["Files", "SlurmSays", "ask_slurm", "file_system", "jobs_on", "read_files", "sharing_jobs"]

Printed = Callable[..., bytes]
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_MOST_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a site, with where each of them lies."""

    slurm_conf: tuple[Path, ...]
    gres_conf: Path
    plugstack_conf: Path
    berth_conf: Path
    texts: Texts
    job_submit_lua: str = ""

    def changes(self, new: Texts) -> list[FileChange]:
        """Returns the files that differ."""
        pairs = list(zip(self.slurm_conf, self.texts.slurm_conf, new.slurm_conf, strict=True))
        pairs.append((self.gres_conf, self.texts.gres_conf, new.gres_conf))
        pairs.append((self.plugstack_conf, self.texts.plugstack_conf, new.plugstack_conf))
        pairs.append((self.berth_conf, self.texts.berth_conf, new.berth_conf))
        return [FileChange(path, content_of(path), _bytes(after)) for path, before, after in pairs if before != after]


@dataclass(frozen=True, slots=True)
class SlurmSays:
    """Holds a cluster's releases, node states and settings as Slurm tells them; empty where it does not answer."""

    version: str = ""
    slurmds: dict[str, str] = field(default_factory=dict)
    """Slurm's release by node."""
    states: dict[str, DrainState] = field(default_factory=dict)
    clusters: tuple[str, ...] = ()
    """All clusters of slurmdbd."""
    accounting: bool = False
    reservations: tuple[Reservation, ...] = ()

    @property
    def answers(self) -> bool:
        """True if the controller could be asked."""
        return bool(self.version)


def read_files(slurm_conf: Path, berth_conf: Path) -> Files:
    """Reads the configuration; raises BerthError where a file cannot be read."""
    found: dict[Path, str] = {}
    _with_includes(slurm_conf, slurm_conf.parent, found)
    texts = tuple(found.values())
    folder = slurm_conf.parent
    plugstack = Path(value_of(texts, "PlugStackConfig") or folder / "plugstack.conf")
    gres = folder / "gres.conf"
    lua = folder / "job_submit.lua"
    elsewhere = any(names_spank(_text(path)) for path in _plugstacks(_text(plugstack), plugstack.parent))
    read = Texts(texts, _text(gres), _text(plugstack), _text(berth_conf), elsewhere)
    return Files(tuple(found), gres, plugstack, berth_conf, read, _text(lua))


def _plugstacks(text: str, folder: Path) -> list[Path]:
    """Returns the files that plugstack.conf includes, each by its path or a pattern."""
    patterns = re.findall(r"^[ \t]*include[ \t]+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return [Path(found) for pattern in patterns for found in sorted(glob.glob(str(folder / pattern)))]  # noqa: PTH207


def _with_includes(path: Path, folder: Path, found: dict[Path, str]) -> None:
    """Reads a file and those that it includes, each once; a name without a folder lies beside slurm.conf."""
    if path in found:
        return
    content = content_of(path)
    if content is None:
        raise BerthError(f"{path} does not exist; set SLURM_CONF, or run this on a controller")
    if len(found) > _MOST_FILES:
        raise BerthError(f"{path}: more than {_MOST_FILES} files are included; look for a circle of Include lines")
    found[path] = content.decode("utf-8", "surrogateescape")
    cluster = value_of(found.values(), "ClusterName").lower()
    for entry in entries(found[path]):
        match = _INCLUDE.fullmatch(entry.text.strip())
        if match:
            _with_includes(folder / match[1].replace("%c", cluster), folder, found)


def ask_slurm(printed: Printed, config_type: str) -> SlurmSays:
    """Asks Slurm for its releases, the nodes' states, and the clusters of its database."""
    try:
        version = printed("scontrol", "version").decode().split()[-1]
        lines = printed("scontrol", "show", "node", "--oneliner").decode("utf-8", "replace").splitlines()
        reserved = printed("scontrol", "show", "reservation", "--oneliner").decode("utf-8", "replace")
    except (SlurmError, IndexError):
        return SlurmSays()
    slurmds = {}
    for line in lines:
        name = re.match(r"NodeName=(\S+)", line)
        if name is None:
            continue
        slurmds[name[1]] = found[1] if (found := re.search(r" Version=(\S+)", line)) else ""
    accounting = "slurmdbd" in config_type
    clusters: tuple[str, ...] = ()
    if accounting:
        try:
            clusters = tuple(printed("sacctmgr", "-nP", "show", "cluster", "format=Cluster").decode().split())
        except SlurmError:
            accounting = False
    return SlurmSays(version, slurmds, node_states(lines), clusters, accounting, reservations(reserved))


def jobs_on(printed: Printed, nodes: Sequence[str]) -> dict[str, list[str]]:
    """Returns the jobs that hold something on these nodes, by node."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        words = ("squeue", "-h", "-a", "-w", node, "-t", "R,S,CG,ST,CF,SI,SO", "-o", "%A")
        jobs = sorted(set(printed(*words).decode().split()), key=int)
        if jobs:
            found[node] = jobs
    return found


def sharing_jobs(printed: Printed, states: str, nodes: Sequence[str] = ()) -> list[str]:
    """Returns the jobs in these states that share GPUs, on these nodes or anywhere.

    A site may track no GRES beside gpu, so the request counts too. Whole GPUs come with a seat; a guest has that alone.
    """
    where = ("-w", ",".join(nodes)) if nodes else ()
    form = "JobID:20,tres-alloc:1000,tres-per-node:1000,tres-per-job:1000"
    lines = printed("squeue", "-h", "-a", *where, "-t", states, "-O", form).decode().splitlines()
    asked = {line[:20].strip(): (line[20:1020], line[1020:]) for line in lines}
    return [
        job
        for job, (allocated, requested) in asked.items()
        if "gres/shard" in allocated + requested or ("gres/seat" in requested and "gres/gpu" not in requested)
    ]


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Returns the type of the file system that holds a folder; empty where it cannot be told."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    above = {str(path) for path in (folder.resolve(), *folder.resolve().parents)}
    held = [(len(words[1]), words[2]) for words in lines if len(words) > 2 and words[1] in above]
    return max(held)[1] if held else ""


def _text(path: Path) -> str:
    return (content_of(path) or b"").decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
