# SPDX-License-Identifier: Apache-2.0
"""The share file of a job, `berth-share/1` (docs/develop/formats.md): what was set up, for SPANK and for people."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prolog_epilog.errors import NodeError, NodeFormatError
from prolog_epilog.job.escape import escape, unescape
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths

FORMAT = "berth-share/1"
MAX_BYTES = 16_384
"""SPANK refuses longer files."""

MAX_WHY = 512

KEEP_SECONDS = 600
"""Seconds for which the share file of a job that could not share is kept."""

_LINE = re.compile(r"([a-zA-Z][a-zA-Z0-9_.-]*)=([!-Z\\^-~]*)")


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """The share that a job got, or the reason why it got none."""

    job: int
    uid: int
    why: str = ""
    """The reason why the job cannot run here; empty: all was set up."""
    gpus: tuple[int, ...] = ()
    minors: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    share: int | None = None
    mem_mib: int | None = None
    way: str = ""
    tier: str = ""
    """`guaranteed` or `opportunistic`; empty for packed jobs."""
    node: str = ""
    """The name of this node in Slurm: the guard tells it to berthd."""
    word: str = ""
    """The folder of the job's words (docs/develop/formats.md)."""
    start: int = 0
    """The start of this run of the job, seconds since 1970; 0: not known."""
    slope: float | None = None
    """For a guest: the share of its speed that its owner is predicted to lose to it."""
    need: tuple[int, int] | None = None
    """For a guest: its owner's job, and the MiB of each GPU that berthd knows that job to need."""
    level: str = ""
    level_text: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    prepend: Mapping[str, str] = field(default_factory=dict)
    """The path, by variable, that goes before what the user's variable lists."""

    @property
    def degraded(self) -> bool:
        """Tells whether SPANK must stop the job before its first line."""
        return bool(self.why)


def text(share: ShareRecord) -> str:
    """Returns the file's contents."""
    rows = [
        ("job", str(share.job)),
        ("uid", str(share.uid)),
        ("status", "degraded" if share.degraded else "ok"),
        ("why", _plain(share.why)),
        ("gpus", ",".join(map(str, share.gpus))),
        ("minors", ",".join(map(str, share.minors))),
        ("uuids", ",".join(share.uuids)),
        ("share", "" if share.share is None else str(share.share)),
        ("mem", "" if share.mem_mib is None else str(share.mem_mib)),
        ("way", share.way),
        ("tier", share.tier),
        ("node", share.node),
        ("word", share.word),
        ("slope", "" if share.slope is None else f"{share.slope:g}"),
        ("need", "" if share.need is None else "{}:{}".format(*share.need)),
        ("start", str(share.start) if share.start else ""),
        ("level", share.level),
        ("level_text", share.level_text),
    ]
    lines = [f"{key}={escape(value)}" for key, value in rows if value]
    lines += [f"set.{name}={escape(value)}" for name, value in share.environment.items()]
    lines += [f"unset.{name}=" for name in share.unset]
    lines += [f"prepend.{name}={escape(path)}" for name, path in share.prepend.items()]
    return "\n".join([FORMAT, *lines, ""])


def _plain(sentence: str) -> str:
    """Returns the sentence with `?` for what SPANK refuses, because it goes to a terminal; cut to its longest."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in sentence)[:MAX_WHY]


def parse(contents: str) -> ShareRecord:
    """Reads a file's contents; ignores keys of a later release."""
    first, *lines = contents.split("\n")
    if first != FORMAT:
        raise NodeFormatError(f"a share file begins with {FORMAT}, not {first[:32]!r}; is all of Berth of one release?")
    if lines.pop() != "":
        raise NodeFormatError("a share file that breaks off; requeue the job")
    values = dict(map(_pair, lines))
    try:
        return ShareRecord(
            job=int(values["job"]),
            uid=int(values["uid"]),
            why=values.get("why", "") if values["status"] == "ok" else values.get("why") or "no reason was written",
            gpus=_numbers(values.get("gpus", "")),
            minors=_numbers(values.get("minors", "")),
            uuids=tuple(filter(None, values.get("uuids", "").split(","))),
            share=int(values["share"]) if "share" in values else None,
            mem_mib=int(values["mem"]) if "mem" in values else None,
            way=values.get("way", ""),
            tier=values.get("tier", ""),
            node=values.get("node", ""),
            word=values.get("word", ""),
            start=int(values.get("start", "0")),
            slope=float(values["slope"]) if "slope" in values else None,
            need=_pair_of_numbers(values["need"]) if "need" in values else None,
            level=values.get("level", ""),
            level_text=values.get("level_text", ""),
            environment={key[4:]: value for key, value in values.items() if key.startswith("set.")},
            unset=tuple(key[6:] for key in values if key.startswith("unset.")),
            prepend={key[8:]: value for key, value in values.items() if key.startswith("prepend.")},
        )
    except (KeyError, ValueError) as problem:
        raise NodeFormatError(f"a share file without a good {problem}; requeue the job") from None


def _pair(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    value = None if match is None else unescape(match.group(2))
    if match is None or value is None:
        raise NodeFormatError(f"a share file with the line {line[:40]!r}; requeue the job")
    return match.group(1), value


def _pair_of_numbers(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last)


def _numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(",") if word)


def write(paths: Paths, share: ShareRecord) -> None:
    """Writes a job's share file, by rename: SPANK sees the old one or the new one."""
    contents = text(share)
    if len(contents) > MAX_BYTES:
        raise NodeFormatError(f"the share file of job {share.job} is longer than {MAX_BYTES} bytes; ask for fewer GPUs")
    files.prepare(paths)
    files.write(paths.job(share.job), contents, 0o644)


def read(paths: Paths, job: int) -> ShareRecord | None:
    """Returns a job's share file; None if it has none."""
    contents = files.read(paths.job(job), MAX_BYTES)
    if contents is None:
        return None
    share = parse(contents)
    if share.job != job:
        raise NodeFormatError(f"{paths.job(job)} is the share file of job {share.job}; requeue the job")
    return share


def remove(paths: Paths, job: int, start: int = 0) -> None:
    """Removes a job's share file, if it has one; that of a run later than the one that began at `start` stays."""
    if has_later(paths, job, start):
        return
    with suppress(FileNotFoundError):
        paths.job(job).unlink()


def has_later(paths: Paths, job: int, start: int) -> bool:
    """Tells whether a later run of the job has a share file here; false if Slurm does not say when runs began."""
    with suppress(NodeError):
        found = read(paths, job) if start else None
        return found is not None and found.start > start
    return False


def jobs(paths: Paths) -> dict[int, float]:
    """Returns the jobs that have a share file, and when each was written, seconds since 1970."""
    with suppress(FileNotFoundError):
        return {int(one.name): one.lstat().st_mtime for one in paths.jobs.iterdir() if one.name.isdecimal()}
    return {}


def sharing(paths: Paths, uuids: Iterable[str], tier: str) -> list[ShareRecord]:
    """Returns the good share files of the jobs of a tier on these GPUs; skips files that cannot be read."""
    found, wanted = [], set(uuids)
    for job in jobs(paths):
        with suppress(NodeError):
            file = read(paths, job)
            if file is not None and file.tier == tier and not file.degraded and wanted & {*file.uuids}:
                found.append(file)
    return found


def remove_old(paths: Paths) -> None:
    """Removes old files of jobs that could not share: berth-notice, which runs after the Epilog, has told berthd."""
    for job, written in jobs(paths).items():
        if time.time() - written > KEEP_SECONDS:
            found = read(paths, job)
            if found is not None and found.degraded:
                remove(paths, job)
    files.remove_drafts([paths.jobs], KEEP_SECONDS)
