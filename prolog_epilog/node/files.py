# SPDX-License-Identifier: Apache-2.0
"""Files that root keeps beside users' files: written whole, read without following links, locked with a time limit."""

import contextlib
import fcntl
import os
import shutil
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prolog_epilog.errors import Busy, StateError
from prolog_epilog.node.paths import Paths

#: Mode of a folder that users may pass through but not list.
THROUGH = 0o711
_PRIVATE = 0o700
_POLL_SECONDS = 0.01

# A POSIX ACL as the kernel takes it: version 2, then tag, permissions and id of each entry.
_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def prepare(paths: Paths) -> None:
    """Makes the folders of the node; a folder that is there is kept as it is, if it can be trusted."""
    with _told("make", paths.root):
        # On a controller this folder belongs to Slurm's user and holds berthd's socket.
        with contextlib.suppress(FileExistsError):
            paths.root.mkdir(parents=True)
            # A job's programs pass through it, whatever slurmd's umask is.
            paths.root.chmod(0o755)
        if not stat.S_ISDIR(paths.root.lstat().st_mode):
            raise StateError(f"{paths.root} is not a folder; remove it")
    for folder in (paths.jobs, paths.gpus, paths.mps):
        own_folder(folder, THROUGH)


def own_folder(path: Path, mode: int = _PRIVATE) -> None:
    """Makes a folder of our own; refuses what another user put in its place."""
    with _told("make", path):
        try:
            path.mkdir(mode)
            path.chmod(mode)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise StateError(f"{path} is not a folder that only root may change; remove it") from None


def write(path: Path, content: str, mode: int = 0o600) -> None:
    """Replaces the file by this content, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _told("write", path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        handle = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def read(path: Path, limit: int = 1 << 20) -> str | None:
    """Returns the file's text; None if there is none. Refuses a link, and a file of another user."""
    with _told("read", path):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise StateError(f"{path} is not a file that only root may change; remove it")
            data = file.read(limit + 1)
    if len(data) > limit:
        raise StateError(f"{path} is larger than {limit} bytes; remove it")
    return data.decode("utf-8", "replace")


def remove_drafts(folders: Iterable[Path], seconds: float) -> None:
    """Removes drafts of that age: they are left by programs that were killed while they wrote."""
    for folder in folders:
        for draft in folder.glob(".*.[0-9]*"):
            with contextlib.suppress(OSError):
                if time.time() - draft.lstat().st_mtime > seconds:
                    draft.unlink()


def remove_folder(path: Path) -> None:
    """Removes a folder of ours with all in it; does not follow links in it."""
    with _told("remove", path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def grant(folder: Path, uids: Iterable[int]) -> bool:
    """Lets only these users (and root) pass through the folder; False if the file system keeps no such list.

    Without access control lists all users may pass: then MPS itself must tell users apart.
    """
    entries = [(_OWNER, 7, _NOBODY)]
    entries += [(_USER, 1, uid) for uid in sorted(set(uids))]
    entries += [(_GROUP, 0, _NOBODY), (_MASK, 1, _NOBODY), (_OTHER, 0, _NOBODY)]
    try:
        os.setxattr(folder, _ACL, struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries))
    except OSError:
        with _told("open", folder):
            folder.chmod(THROUGH)
        return False
    return True


@contextmanager
def locked(paths: Paths, uuids: Iterable[str], seconds: float) -> Iterator[None]:
    """Holds the locks of these GPUs, always taken in the same order; raises Busy after so many seconds."""
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            stack.enter_context(_one_lock(paths, uuid, until))
        yield


@contextmanager
def _one_lock(paths: Paths, uuid: str, until: float) -> Iterator[None]:
    handle = -1
    try:
        while handle < 0:
            handle = _try_lock(paths, uuid)
            if handle < 0:
                if time.monotonic() > until:
                    raise Busy(f"GPU {uuid} is being set up or cleaned by another job for too long; try again")
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _try_lock(paths: Paths, uuid: str) -> int:
    """Returns the locked file, or -1: held by another, or just removed by the GPU's last tenant."""
    try:
        own_folder(paths.gpu(uuid), THROUGH)
    except StateError as error:
        if isinstance(error.__cause__, FileNotFoundError) and paths.gpus.is_dir():
            return -1
        raise
    path = paths.lock(uuid)
    with _told("lock", path):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return -1
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(handle)
        return -1


def sole(path: Path) -> int:
    """Makes this process the one holder of a file while the descriptor is open; returns -1 if another process is.

    A record lock is not inherited: processes that are forked meanwhile do not hold it.
    """
    with _told("lock", path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def remove_lock(paths: Paths, uuid: str) -> None:
    """Removes the GPU's folder at its end; only the lock's holder may. A process that waits for it makes a new one."""
    with contextlib.suppress(OSError):
        for half_written in paths.gpu(uuid).glob(".*"):
            half_written.unlink()
        paths.lock(uuid).unlink()
        paths.gpu(uuid).rmdir()


@contextmanager
def _told(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"cannot {verb} {path}: {error.strerror or error}; check the file system") from error
