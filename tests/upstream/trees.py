# SPDX-License-Identifier: Apache-2.0
"""Slurm's sources: a folder, or a commit of a git repository, which needs no work tree."""

from __future__ import annotations

import functools
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

READ = ("META", "slurm", "src")
"""What is read of a commit; documents and Slurm's own tests are left out."""


class TreeError(Exception):
    """One sentence for the developer."""


@dataclass(frozen=True)
class Tree:
    """The texts of one release, by path."""

    name: str
    texts: dict[str, str]

    def text(self, *paths: str) -> str:
        """Returns the first of these files that is there: Slurm moves files about; empty without any."""
        return next((self.texts[path] for path in paths if path in self.texts), "")

    def under(self, *folders: str, suffix: str = ".c") -> list[str]:
        """Returns the files of these folders, and of those in them."""
        return sorted(path for path in self.texts if path.startswith(folders) and path.endswith(suffix))

    @functools.cached_property
    def meta(self) -> dict[str, str]:
        """Returns the words of META, such as Version and API_CURRENT."""
        lines = (line.partition(":") for line in self.text("META").splitlines() if not line.lstrip().startswith("#"))
        return {key.strip(): value.strip() for key, colon, value in lines if colon}


def read_tree(source: str) -> Tree:
    """Reads `FOLDER`, or `REPOSITORY@COMMIT`."""
    path, at, commit = source.rpartition("@")
    tree = _of_commit(Path(path), commit) if at else _of_folder(Path(source))
    if "slurm/slurm.h.in" not in tree.texts and "slurm/slurm.h" not in tree.texts:
        raise TreeError(f"{source} has no slurm/slurm.h: name a source tree of Slurm, or REPOSITORY@COMMIT")
    return tree


def _is_read(path: str) -> bool:
    return path == "META" or path.endswith((".c", ".h", ".h.in"))


def _of_folder(folder: Path) -> Tree:
    paths = (path for name in READ for path in [folder / name, *(folder / name).rglob("*")])
    found = {str(path.relative_to(folder)): path for path in paths if path.is_file()}
    return Tree(str(folder), {name: path.read_text(errors="replace") for name, path in found.items() if _is_read(name)})


def _of_commit(repository: Path, commit: str) -> Tree:
    command = ["git", "-C", str(repository), "archive", commit, *READ]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise TreeError(f"{repository} has no {commit}: {done.stderr.decode(errors='replace').strip()}")
    texts: dict[str, str] = {}
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        for member in packed:
            if member.isfile() and _is_read(member.name) and (file := packed.extractfile(member)):
                texts[member.name] = file.read().decode(errors="replace")
    return Tree(commit, texts)
