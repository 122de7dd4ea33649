"""Keeps a copy of each changed file, so that every change can be undone byte for byte.

    FOLDER/001/record.json     what was changed: path, hash before and after, by which rung
    FOLDER/001/before/0        the file as it was, for the first path
    FOLDER/001/after/0         the file as it was written

A change is written down before the first file is replaced. After a crash in between, undo finds some files changed and
some not, and restores those that were.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from policy.formats.errors import BerthError

__all__ = ["Change", "ChangeStore", "FileChange", "content_of", "difference", "new_change", "put"]

VERSION = 1


class ChangedByOthersError(BerthError):
    """A file is not as `berth migrate` left it, so that to restore it would undo somebody's work."""

    number = 713


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of a change; None is a file that is not there."""

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
    """Commands that restore limits in slurmdbd, which are no files."""


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
        """Returns what was applied and not undone, the oldest first."""
        found = []
        if self.folder.exists() and not os.access(self.folder, os.R_OK | os.X_OK):
            raise BerthError(f"{self.folder}: not yours to read; run as root, or name a folder with --state")
        try:
            places = sorted(self.folder.glob("[0-9]*/record.json"), key=lambda path: int(path.parent.name))
        except OSError:
            return []
        for place in places:
            try:
                record = json.loads(place.read_text())
                if not record["undone"]:
                    found.append(_read(place.parent, record))
            except (OSError, ValueError, KeyError, TypeError) as problem:
                raise BerthError(f"{place}: {problem}; restore the file, or move its folder away") from None
        return found

    def apply(self, change: Change) -> Change:
        """Writes the files of a change; returns it with its number."""
        numbers = [int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdigit()]
        number = max(numbers, default=0) + 1
        place = self.folder / f"{number:03}"
        for part in ("before", "after"):
            (place / part).mkdir(parents=True, mode=0o700)
        for index, file in enumerate(change.files):
            for part, content in (("before", file.before), ("after", file.after)):
                if content is not None:
                    write(place / part / str(index), content)
        numbered = Change(**{**_shallow(change), "number": number})
        self._record(numbered, undone=False)
        for file in change.files:
            put(file.path, file.after)
        return numbered

    def undo(self, change: Change) -> None:
        """Restores the files of a change; all are looked at before the first is written."""
        for file in change.files:
            present = content_of(file.path)
            if present not in (file.after, file.before):
                self.refuse([change], file)
        for file in change.files:
            put(file.path, file.before)
        self._record(change, undone=True)

    def refuse(self, changes: Sequence[Change], file: FileChange) -> NoReturn:
        """Raises ChangedByOthersError for a file of one of these changes."""
        change = next(one for one in changes if file in one.files)
        where = self.folder / f"{change.number:03}" / "after" / str(change.files.index(file))
        raise ChangedByOthersError(
            f"{file.path} was changed since berth migrate wrote it: diff {where} {file.path} shows how;"
            " take that out, or restore the file by hand from before/ beside it"
        )

    def _record(self, change: Change, *, undone: bool) -> None:
        record: dict[str, Any] = {
            "version": VERSION,
            **{key: value for key, value in asdict(change).items() if key != "files"},
            "undone": undone,
            "files": [
                {"path": str(file.path), "before": _hash(file.before), "after": _hash(file.after)}
                for file in change.files
            ],
        }
        write(self.folder / f"{change.number:03}" / "record.json", json.dumps(record, indent=1).encode() + b"\n")


def _shallow(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in Change.__slots__}


def _read(place: Path, record: Mapping[str, Any]) -> Change:
    files = []
    for index, file in enumerate(record["files"]):
        both = []
        for part in ("before", "after"):
            content = content_of(place / part / str(index)) if file[part] is not None else None
            if _hash(content) != file[part]:
                raise BerthError(f"{place / part / str(index)} is not the copy of {file['path']} that was made")
            both.append(content)
        files.append(FileChange(Path(file["path"]), *both))
    return Change(
        record["number"],
        record["rung"],
        record["came_from"],
        tuple(record["nodes"]),
        record["when"],
        tuple(files),
        tuple(record["back"]),
    )


def new_change(
    rung: str, came_from: str, nodes: Sequence[str], files: Sequence[FileChange], back: Sequence[str]
) -> Change:
    """Returns a change that has not been written."""
    return Change(0, rung, came_from, tuple(nodes), time.time(), tuple(files), tuple(back))


def content_of(path: Path) -> bytes | None:
    """Returns a file's bytes; None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise BerthError(f"{path}: {problem.strerror}; it has to be readable") from None


def put(path: Path, content: bytes | None) -> None:
    """Gives a file its content, or removes it; a link stays a link."""
    target = path.resolve()
    if content_of(target) == content:
        return
    try:
        if content is None:
            target.unlink()
        else:
            write(target, content)
    except OSError as problem:
        raise BerthError(
            f"{path}: {problem.strerror}; run as a user who may write it, then apply or undo again"
        ) from None


def write(path: Path, content: bytes) -> None:
    """Replaces a file at once, with the owner and the rights that it had; a reader sees the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            try:
                old = path.stat()
            except FileNotFoundError:
                os.fchmod(file.fileno(), 0o644)
            else:
                os.fchmod(file.fileno(), old.st_mode & 0o7777)
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def difference(file: FileChange) -> str:
    """Returns a file's change as a unified diff."""
    old, new = (_lines(content) for content in (file.before, file.after))
    names = (str(file.path) if file.before is not None else "/dev/null", str(file.path))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, *names)
    )


def _lines(content: bytes | None) -> list[str]:
    text = (content or b"").decode("utf-8", "surrogateescape")
    return text.splitlines(keepends=True)


def _hash(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()
