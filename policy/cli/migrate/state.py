# SPDX-License-Identifier: Apache-2.0
"""Keeps a copy of each changed file, so that every change can be undone byte for byte.

    FOLDER/001/record.json     what was changed: path, hash before and after, by which rung
    FOLDER/001/before/0        the file as it was, for the first path
    FOLDER/001/after/0         the file as it was written

A change is recorded before the first file is replaced. After a crash in between, undo finds some files changed and some
not, and restores the changed ones.
"""

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from policy.formats.errors import BerthError
from topology import atomic
from topology.errors import TopologyFileError

VERSION = 1


class ChangedByOthersError(BerthError):
    """A file is not as `berth migrate` left it, so to restore it would undo a person's work."""

    number = 713


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of a change; None stands for a file that does not exist."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Change:
    """One call of `berth migrate apply`."""

    number: int
    rung: str
    came_from: str
    nodes: tuple[str, ...]
    when: float
    files: tuple[FileChange, ...]
    back: tuple[str, ...]
    """Commands that restore limits in slurmdbd."""


class ChangeStore:
    """The changes of a site, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second `berth migrate` out."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise BerthError(f"{self.folder}: {problem.strerror}; run as root, or name a folder with --state") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise BerthError(f"{self.folder} is in use by another berth migrate; wait for its end") from None
        finally:
            os.close(handle)

    def changes(self) -> list[Change]:
        """Returns the changes that were applied and not undone, the oldest first."""
        if self.folder.exists() and not os.access(self.folder, os.R_OK | os.X_OK):
            raise BerthError(f"{self.folder}: not yours to read; run as root, or name a folder with --state")
        found = []
        for place in self._places():
            try:
                record = json.loads((place / "record.json").read_text())
                if not record["undone"]:
                    found.append(_read(place, record))
            except FileNotFoundError:
                # The call broke off before any file was replaced.
                continue
            except (OSError, ValueError, KeyError, TypeError) as problem:
                raise BerthError(f"{place}: {problem}; restore its files, or move it away") from None
        return found

    def _places(self) -> list[Path]:
        return sorted((path for path in self.folder.glob("*") if path.name.isdigit()), key=lambda path: int(path.name))

    def apply(self, change: Change) -> Change:
        """Writes the files of a change; returns it with its number."""
        numbered = replace(change, number=max((int(path.name) for path in self._places()), default=0) + 1)
        place = self._place(numbered)
        for part in ("before", "after"):
            (place / part).mkdir(parents=True, mode=0o700)
            for index, file in enumerate(change.files):
                content = getattr(file, part)
                if content is not None:
                    atomic.replace(place / part / str(index), content)
        self._record(numbered, undone=False)
        for file in change.files:
            put(file.path, file.after)
        return numbered

    def undo(self, changes: Sequence[Change]) -> None:
        """Restores the files of these changes, the last one first, unless a file was changed since."""
        self.check(changes)
        for change in changes:
            for file in change.files:
                put(file.path, file.before)
            self._record(change, undone=True)

    def check(self, changes: Sequence[Change]) -> None:
        """Raises ChangedByOthersError if a file is not as the last of these changes left it."""
        seen = set()
        for change in changes:
            for index, file in enumerate(change.files):
                if file.path not in seen and content_of(file.path) not in (file.after, file.before):
                    raise ChangedByOthersError(
                        f"{file.path} was changed since berth migrate wrote it:"
                        f" diff {self._place(change) / 'after' / str(index)} {file.path} shows how;"
                        " take that out, or restore the file by hand from before/ beside it"
                    )
                seen.add(file.path)

    def _place(self, change: Change) -> Path:
        return self.folder / f"{change.number:03}"

    def _record(self, change: Change, *, undone: bool) -> None:
        files = [
            {"path": str(file.path), "before": _hash(file.before), "after": _hash(file.after)} for file in change.files
        ]
        record = {"version": VERSION, **asdict(change), "undone": undone, "files": files}
        atomic.replace(self._place(change) / "record.json", json.dumps(record, indent=1).encode() + b"\n")


def _read(place: Path, record: Mapping[str, Any]) -> Change:
    files = []
    for index, file in enumerate(record["files"]):
        both = []
        for part in ("before", "after"):
            copy = place / part / str(index)
            content = content_of(copy) if file[part] is not None else None
            if _hash(content) != file[part]:
                raise BerthError(f"{copy} is not the copy of {file['path']} that was made")
            both.append(content)
        files.append(FileChange(Path(file["path"]), *both))
    own = {key: record[key] for key in ("number", "rung", "came_from", "when")}
    return Change(**own, nodes=tuple(record["nodes"]), back=tuple(record["back"]), files=tuple(files))


def content_of(path: Path) -> bytes | None:
    """Returns a file's bytes; None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise BerthError(f"{path}: {problem.strerror}; it has to be readable") from None


def put(path: Path, content: bytes | None) -> None:
    """Writes or removes a file; its owner and rights stay, and a link stays a link."""
    target = path.resolve()
    if content_of(target) == content:
        return
    try:
        if content is None:
            target.unlink()
        elif target.exists():
            old = target.stat()
            atomic.replace(target, content, old.st_mode & 0o7777, (old.st_uid, old.st_gid))
        else:
            atomic.replace(target, content)
    except (OSError, TopologyFileError) as problem:
        raise BerthError(f"{path}: {problem}; run as a user who may write it, then apply or undo again") from None


def difference(file: FileChange) -> str:
    """Returns a file's change as a unified diff."""
    texts = ((content or b"").decode("utf-8", "surrogateescape") for content in (file.before, file.after))
    old, new = (text.splitlines(keepends=True) for text in texts)
    names = (str(file.path) if file.before is not None else "/dev/null", str(file.path))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, *names)
    )


def _hash(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()
