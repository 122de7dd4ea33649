# SPDX-License-Identifier: Apache-2.0
"""The command `berth profile`: what jobs use of a GPU when they run alone."""

import argparse
import sys
from pathlib import Path
from typing import Any

from policy.cli.output import print_json, print_table
from policy.formats.errors import FormatError, UsageError
from policy.site import config
from policy.slurm.by_command.command import run_command
from topology import atomic


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("profile", help="what jobs use of a GPU")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show = actions.add_parser("show", help="your own profiles")
    _store(show)
    show.add_argument("--all", action="store_true", help="those of all users; as root")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=run_show)

    refresh = actions.add_parser("refresh", help="add what sacct knows of jobs that have ended; for Slurm's user")
    _store(refresh)
    refresh.add_argument(
        "--since",
        default="now-2days",
        metavar="TIME",
        help="jobs that ended since then, as for sacct -S (default: %(default)s)",
    )
    refresh.set_defaults(run=run_refresh)


def _store(parser: argparse.ArgumentParser) -> None:
    where = "default: [sharing] profiles in berth.conf, else /var/lib/berth/profiles"
    parser.add_argument("--store", type=Path, default=None, help=where)


def run_show(options: argparse.Namespace) -> int:
    """Prints profiles; only root sees those of other users."""
    import os  # noqa: PLC0415 - keeps `berth --help` fast
    import pwd  # noqa: PLC0415 - the same

    from policy.sharing import profiles  # noqa: PLC0415 - the same

    if options.all and os.geteuid() != 0:
        raise UsageError("berth profile show --all is for root; without --all it shows your own profiles")
    store = profiles.Store.read(_text(_where(options)))
    found = store.measured if options.all else store.seen_by(pwd.getpwuid(os.getuid()).pw_name)
    rows = {str(key): measured for key, measured in sorted(found.items())}
    if options.json:
        print_json({"profiles": {name: profiles.fields_of(measured) for name, measured in rows.items()}})
    else:
        print_table([(name, profiles.describe(measured)) for name, measured in rows.items()])
    return 0


def run_refresh(options: argparse.Namespace) -> int:
    """Merges sacct's records into the store; a job that was counted before is not counted again."""
    import os  # noqa: PLC0415 - keeps `berth --help` fast
    import secrets  # noqa: PLC0415 - the same

    from policy.sharing import profiles, sources  # noqa: PLC0415 - the same

    path = _where(options)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}: make it, with Slurm's user as its owner")
    if path.parent.stat().st_uid != os.geteuid():
        raise UsageError(f"berth profile refresh writes {path} as berthd does: run it as the owner of {path.parent}")
    store = profiles.Store.read(_text(path)) if path.exists() else profiles.Store()
    mark = secrets.token_hex(8)
    printed = run_command(*sources.COMMAND.split(), "--delimiter", mark, "-S", options.since).decode("utf-8", "replace")
    last = {key: one.at for key, one in store.measured.items()}
    lines = printed.removesuffix("\n").split("\n")
    found = [(key, one) for key, one in sources.from_sacct(lines, mark) if one.at > last.get(key, 0.0)]
    for key, one in found:
        store.add(key, one)
    if found:
        atomic.replace(path, store.write().encode(), 0o600)
    sys.stdout.write(f"{len(found)} jobs added, {len(store.measured)} profiles in {path}\n")
    return 0


def _where(options: argparse.Namespace) -> Path:
    """Returns the path of the store: from the option, else from berth.conf."""
    if options.store is not None:
        return Path(options.store)
    return Path(config.load(config.config_path()).settings.sharing.profiles or "/var/lib/berth/profiles")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(f"{path} cannot be read ({problem}); give the path of a readable file") from None
