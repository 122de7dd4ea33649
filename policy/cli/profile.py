"""The command `berth profile`, on what jobs do alone, and how fast they would be beside each other."""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.cli.output import print_json, print_table
from policy.formats.errors import FormatError, UsageError
from policy.site import config
from policy.slurm.by_command.command import run_command
from topology import atomic

if TYPE_CHECKING:
    from policy.sharing.predictor import Array, Fit
    from policy.sharing.training import Pairs

SHIPPED = Path(__file__).resolve().parents[1] / "sharing" / "fit.json"

_LEVEL = 0.85
_SAFE = 0.9
_HARMED = 0.85


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("profile", help="what jobs use of a GPU, and how fast two are beside each other")
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

    evaluate = actions.add_parser("evaluate", help="compare the predictor with a table of measured pairs")
    _tables(evaluate)
    evaluate.add_argument(
        "--fit", type=Path, default=SHIPPED, help="the fit to judge (default: the one that ships with Berth)"
    )
    evaluate.add_argument(
        "--level", type=float, default=_LEVEL, help="share of promises that have to hold, 0 to 1 (default: %(default)s)"
    )
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.set_defaults(run=run_evaluate)

    fit = actions.add_parser("fit", help="train the predictor on a table of measured pairs")
    _tables(fit)
    fit.add_argument("--source", required=True, help="where the table comes from; written into the fit")
    fit.add_argument("--output", type=Path, required=True, metavar="FILE", help="the fit to write")
    fit.set_defaults(run=run_fit)


def _store(parser: argparse.ArgumentParser) -> None:
    where = "default: [sharing] profiles in berth.conf, else /var/lib/berth/profiles"
    parser.add_argument("--store", type=Path, default=None, help=where)


def _tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pairs", type=Path, required=True, metavar="PAIRS.csv", help="measured speeds of pairs of jobs"
    )
    parser.add_argument("--solo", type=Path, required=True, metavar="SOLO.csv", help="measurements of each job alone")


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


def run_evaluate(options: argparse.Namespace) -> int:
    """Prints the figures of a fit on a table."""
    figures = judge(load(options.fit), read_pairs(options.pairs, options.solo), options.level)
    if options.json:
        print_json(figures)
    else:
        print_table([(name, f"{value:.4g}") for name, value in figures.items()])
    return 0


def run_fit(options: argparse.Namespace) -> int:
    """Trains and writes a fit."""
    from policy.sharing.training import train  # noqa: PLC0415 - numpy and scipy only where they are needed

    pairs = read_pairs(options.pairs, options.solo)
    atomic.replace(options.output, train(pairs, options.source).write().encode())
    sys.stdout.write(f"{len(pairs)} pairs, written to {options.output}\n")
    return 0


def load(path: Path = SHIPPED) -> "Fit":
    """Reads a fit from its file."""
    from policy.sharing.predictor import Fit  # noqa: PLC0415 - numpy only where it is needed

    return Fit.read(_text(path))


def judge(fit: "Fit", pairs: "Pairs", level: float) -> dict[str, float]:
    """Returns figures of a fit on a table: the error of the speeds, and how promises hold.

    As berthd does it: jobs like measured ones are promised, others are tried first. `numbers_*` are the figures of
    `promised` without trials, where numbers alone promise.
    """
    from policy.sharing.conformal import LEVELS  # noqa: PLC0415 - numpy only where it is needed
    from policy.sharing.training import guess  # noqa: PLC0415 - the same
    from policy.sharing.trial_replay import replay  # noqa: PLC0415 - the same

    if not 0 < level <= LEVELS[-1]:
        raise UsageError(f"--level {level} is not above 0 and at most {LEVELS[-1]}")
    said = guess(fit, pairs, level)
    numbers = promised(said.least, pairs.speeds)
    tried = replay(fit, pairs, level)
    return {
        "mae": float(abs(said.speeds - pairs.speeds).mean()),
        "false_safe": tried.false_safe,
        "safe_recall": tried.safe_recall,
        "promised": tried.promised / tried.pairs,
        "trials": tried.trials / tried.pairs,
        "trials_harmed": tried.trials_harmed / max(1, tried.trials),
        "false_safe_in_time": tried.false_safe_in_time,
        "safe_recall_with_trials": tried.safe_recall_with_trials,
        **{f"numbers_{name}": numbers[name] for name in ("false_safe", "safe_recall", "promised")},
        "pairs": tried.pairs,
        "level": level,
    }


def promised(least: "Array", speeds: "Array") -> dict[str, float]:
    """Compares promises that both sides keep 0.9 of their speed with the true speeds.

    Returns the part of the promises with a side below 0.85, and the part of the safe pairs that were found.
    """
    promise, truth = least.min(axis=1) >= _SAFE, speeds.min(axis=1)
    safe, harmed = truth >= _SAFE, truth < _HARMED
    return {
        "false_safe": float((promise & harmed).sum() / max(1, promise.sum())),
        "safe_recall": float((promise & safe).sum() / max(1, safe.sum())),
        "promised": float(promise.mean()),
        "pairs": len(truth),
    }


def read_pairs(pairs: Path, solo: Path) -> "Pairs":
    """Reads a table of measured pairs, with the profiles of both sides from a table of jobs alone.

    Profiles measured while the jobs shared a GPU are never used.
    """
    import numpy as np  # noqa: PLC0415 - keeps `berth --help` fast

    from policy.sharing import predictor  # noqa: PLC0415 - the same
    from policy.sharing.training import Pairs  # noqa: PLC0415 - the same

    alone: dict[tuple[str, ...], Array] = {}
    for row, values in _rows(solo, ("model", "batchsize", "amp"), ("gpu_util", "gmem_util", "gmem")):
        alone[row] = predictor.profile(values[0] / 100, values[1] / 100, values[2])
    sides = ("model1", "batchsize1", "amp1", "model2", "batchsize2", "amp2")
    first, second, speeds, names = [], [], [], []
    for row, values in _rows(pairs, sides, ("speed1", "speed2")):
        for side in (row[:3], row[3:]):
            if side not in alone:
                raise FormatError(f"{solo} has no row for {side[0]} with batch size {side[1]} and amp {side[2]}")
        first.append(alone[row[:3]])
        second.append(alone[row[3:]])
        speeds.append(values)
        names.append((row[0], row[3]))
    if not speeds:
        raise FormatError(f"{pairs} has no rows; it needs one for each measured pair")
    return Pairs(np.array(first), np.array(second), np.array(speeds), names)


def _rows(
    path: Path, texts: tuple[str, ...], numbers: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[float]]]:
    table = csv.DictReader(_text(path).splitlines())
    missing = [name for name in texts + numbers if name not in (table.fieldnames or ())]
    if missing:
        raise FormatError(f"{path} has no column {missing[0]}")
    for row in table:
        try:
            values = [float(row[name]) for name in numbers]
        except (TypeError, ValueError):
            raise FormatError(f"{path}, line {table.line_num}: {', '.join(numbers)} must be numbers") from None
        yield tuple(_plain(row[name]) for name in texts), values


def _plain(text: str) -> str:
    """Returns `64` for `64.0`, because tables write whole numbers in both ways."""
    return text.removesuffix(".0")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(f"{path} cannot be read ({problem}); give the path of a readable file") from None
