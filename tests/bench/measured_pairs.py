# SPDX-License-Identifier: Apache-2.0
"""Tables of measured pairs: reads them, judges promises by them, and makes the predictor's fit of one.

    python -m tests.bench.measured_pairs --pairs PAIRS.csv --solo SOLO.csv --source "our own sweep" --output fit.json

`[sharing] fit` of berth.conf names the file for berthd (docs/research/sharing.md).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from policy.formats.errors import FormatError
from policy.sharing import predictor
from policy.sharing.predictor import Array, Fit
from tests.bench.training import Pairs, train
from topology import atomic

_SAFE = 0.9
_HARMED = 0.85


def shipped() -> Fit:
    """Reads the fit that ships with Berth."""
    return Fit.read(files("policy.sharing").joinpath("fit.json").read_text())


def promised(least: Array, speeds: Array) -> dict[str, float]:
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


def read_pairs(pairs: Path, solo: Path) -> Pairs:
    """Reads a table of measured pairs, with the profiles of both sides from a table of jobs alone.

    Profiles measured while the jobs shared a GPU are never used.
    """
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


def main(words: Sequence[str] | None = None) -> None:
    """Trains a fit on a table and writes it."""
    parser = argparse.ArgumentParser(description="Makes the predictor's fit of a table of measured pairs.")
    parser.add_argument("--pairs", type=Path, required=True, metavar="PAIRS.csv", help="measured speeds of pairs")
    parser.add_argument("--solo", type=Path, required=True, metavar="SOLO.csv", help="measurements of each job alone")
    parser.add_argument("--source", required=True, help="where the table comes from; written into the fit")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the fit to write")
    args = parser.parse_args(words)
    pairs = read_pairs(args.pairs, args.solo)
    atomic.replace(args.output, train(pairs, args.source).write().encode())
    sys.stdout.write(f"{len(pairs)} pairs, written to {args.output}\n")


if __name__ == "__main__":
    main()
