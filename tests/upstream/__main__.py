# SPDX-License-Identifier: Apache-2.0
"""Tells what of the interface that Berth uses differs between two releases of Slurm.

    python -m tests.upstream /where/slurm-26.11 /where/slurm-26.05
    python -m tests.upstream /where/slurm.git@slurm-26-11-0-1 /where/slurm.git@slurm-26-05-3-1

A tree is a folder, or a commit of a repository. Exit status 1: something differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .interface import changes, interface, versions
from .trees import Tree, TreeError, read_tree
from .uses import read_uses


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares two trees."""
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__.partition("\n")[0])
    parser.add_argument("new", help="the tree to be looked at")
    parser.add_argument("tested", help="the tree of a release that Berth was tested on")
    parser.add_argument("--public", action="store_true", help="all that the public headers declare, used or not")
    options = parser.parse_args(arguments)
    try:
        new, tested = read_tree(options.new), read_tree(options.tested)
    except TreeError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    uses = read_uses(public=options.public)
    found = changes(interface(tested, uses), interface(new, uses))
    sys.stdout.writelines(f"{line}\n" for line in (*_versions(tested, new), *found))
    sys.stdout.write(f"{len(found)} changes of what Berth uses\n")
    return 1 if found else 0


def _versions(old: Tree, new: Tree) -> list[str]:
    before, after = versions(old), versions(new)
    return [f"({name}: {text} became {after.get(name)})" for name, text in before.items() if after.get(name) != text]


if __name__ == "__main__":
    sys.exit(main())
