# SPDX-License-Identifier: Apache-2.0
"""Replaces files atomically: a reader sees the old content or the new content, never a part. Standard library only."""

import contextlib
import os
import tempfile
from pathlib import Path

from topology.errors import TopologyFileError


def replace(
    path: str | os.PathLike[str], content: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None
) -> None:
    """Replaces the file's content, by default readable by all; raises TopologyFileError with the reason.

    A link stays a link. `owner` are the numbers of a user and a group; None stands for those of this process.
    """
    name, path = path, Path(path).resolve()
    try:
        if path.exists() and not path.is_file():
            raise TopologyFileError(f"cannot write {name}: it is no plain file; name another file")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
                if owner is not None and owner != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), *owner)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise TopologyFileError(f"cannot write {name}: {error.strerror}") from error
