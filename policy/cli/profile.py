# SPDX-License-Identifier: Apache-2.0
"""The command `berth profile`: what jobs use of a GPU when they run alone."""

import argparse
from pathlib import Path
from typing import Any

from policy.cli.output import print_json, print_table
from policy.formats.errors import FormatError, UsageError
from policy.site import config
from policy.site.overview import user_of


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("profile", help="what jobs use of a GPU")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show = actions.add_parser("show", help="your own profiles")
    where = "default: [sharing] profiles in berth.conf, else /var/lib/berth/profiles"
    show.add_argument("--store", type=Path, default=None, help=where)
    show.add_argument("--all", action="store_true", help="those of all users; as root")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=run_show)


def run_show(options: argparse.Namespace) -> int:
    """Prints profiles; only root sees those of other users."""
    import os  # noqa: PLC0415 - keeps `berth --help` fast

    from policy.sharing import profiles  # noqa: PLC0415 - the same

    if options.all and os.geteuid() != 0:
        raise UsageError("berth profile show --all is for root; without --all it shows your own profiles")
    named = options.store or config.load(config.config_path()).settings.sharing.profiles or "/var/lib/berth/profiles"
    store = profiles.Store.read(_text(Path(named)))
    found = store.measured if options.all else store.seen_by(user_of(os.getuid()))
    rows = {str(key): measured for key, measured in sorted(found.items())}
    if options.json:
        print_json({"profiles": {name: profiles.fields_of(measured) for name, measured in rows.items()}})
    else:
        print_table([(name, profiles.describe(measured)) for name, measured in rows.items()])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(f"{path} cannot be read ({problem}); give the path of a readable file") from None
