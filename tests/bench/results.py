# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the results page, its data files and its plots, all from the tables of docs/results.

The tables are renewed by `make measurements`. From them come the data of each plot (docs/results/data/NAME.csv), from
the data the plots (docs/results/NAME.svg), and from both the page (docs/results/README.md).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from tests.bench import results_charts
from tests.bench.results_claims import CLAIMS, Claim
from tests.bench.results_tables import COLUMNS, FOLDER, Part, parts_of

INTRO = """# Results

One plot for each claim, and how it was measured. `make pictures` writes this page, the plots and their data from
[all tables](tables.md); `make measurements` renews the tables first.

* None of the plots is of a real GPU. Drivers, MPS and links are simulated, or a model fitted on published measurements.
  What one H200 showed: [gpu.md](gpu.md).
* Figures beside each other are of one run on one machine. [Bounds that were missed](#bounds-that-were-missed) are at
  the end.
* More: [rules of placement](placement-rules.md), [Slurm's own rules](slurm-rules.md),
  [PAL's simulations](pal.md), [releases and credentials](cells.md), [request forms](request-forms.md),
  [as on plain Slurm](like-plain.md),
  [the roll-out](rollout.md), [failures](failures.md), [berthd under load](../develop/load.md), [worlds](worlds.md),
  [campaigns](campaign.md), [the layout of the code](house.md), [the papers' headlines beside ours](papers.md).
"""


def main() -> int:
    (FOLDER / "data").mkdir(exist_ok=True)
    claims = [make() for make in CLAIMS]
    for claim in claims:
        data_file(claim).write_text(frame(claim).to_csv(index=False, lineterminator="\n"), encoding="utf-8")
        picture_file(claim).write_text(draw(claim, pd.read_csv(data_file(claim))), encoding="utf-8")
    (FOLDER / "README.md").write_text(page(claims), encoding="utf-8")
    print(f"pictures: wrote docs/results/README.md and {len(claims)} plots")
    return 0


def data_file(claim: Claim) -> Path:
    return FOLDER / "data" / f"{claim.name}.csv"


def picture_file(claim: Claim) -> Path:
    return FOLDER / f"{claim.name}.svg"


def frame(claim: Claim) -> pd.DataFrame:
    """The data of a plot, one line for each bar or point."""
    columns = ["row", "series", "value", "low", "high"]
    if claim.kind != "intervals":
        columns = columns[:3]
    return pd.DataFrame([list(point)[: len(columns)] for point in claim.points], columns=columns).round(6)


def draw(claim: Claim, data: pd.DataFrame) -> str:
    """The picture of a data file."""
    if claim.kind == "groups":
        rows: dict[str, dict[str, float]] = {}
        for row, series, value in data.itertuples(index=False):
            rows.setdefault(str(row), {})[str(series)] = float(value)
        text = results_charts.groups(claim.title, rows, claim.unit, mark=claim.mark, alone=True)
    elif claim.kind == "growth":
        lines: dict[str, dict[float, float]] = {}
        for row, size, value in data.itertuples(index=False):
            lines.setdefault(str(row), {})[float(size)] = float(value)
        text = results_charts.growth(claim.title, lines, "size, times the least", claim.unit, alone=True)
    else:
        if claim.mark is None:
            raise ValueError(f"{claim.name}: intervals need a mark")
        points = {
            str(row): (float(value), float(low), float(high))
            for row, _, value, low, high in data.itertuples(index=False)
        }
        text = results_charts.intervals(claim.title, points, claim.unit, claim.mark, log_x=claim.log_x, alone=True)
    return text.rstrip("\n") + "\n"


def page(claims: Iterable[Claim]) -> str:
    parts = [INTRO]
    for claim in claims:
        parts.append(f"\n## {claim.title}\n")
        parts.append(f"![{claim.shows}]({picture_file(claim).name})\n")
        parts.append(
            textwrap.fill(" ".join(claim.text.split()), 118, break_on_hyphens=False, break_long_words=False) + "\n"
        )
        parts.append(f"*Measured by {how(claim)}.* [Data](data/{data_file(claim).name})\n")
    parts.append("\n## Bounds that were missed\n\n| figure | value | bound | table |\n| --- | --- | --- | --- |")
    parts += [*missed(), ""]
    return "\n".join(parts)


def missed() -> Iterator[str]:
    """Yields a row for each figure of the tables that missed its bound."""
    for one in parts_of("tables.md"):
        for cells in one.rows(*COLUMNS, missing_ok=True):
            if cells[7] == "**no**":
                value = " ".join(cells[1:3]).strip()
                bound = cells[6].replace("<=", "at most").replace(">=", "at least")
                yield f"| {cells[0]} | {value} | {bound} | [{one.heading}](tables.md#{one.anchor}) |"


def how(claim: Claim) -> str:
    """Commands, machine, versions and day of a claim, from the notes of its tables."""
    return "; ".join(dict.fromkeys(_source(one, claim) for one in claim.sources))


def _source(source: Part | str, claim: Claim) -> str:
    if isinstance(source, str):
        return source
    notes = source.notes
    said = [f"[`{source.command}`](tables.md#{source.anchor})", notes.get("machine", ""), notes.get("slurm", "")]
    day = notes.get("date", "")
    said.append(day or f"recorded {claim.recorded}, the day of the run was not kept")
    return ", ".join(filter(None, said))


if __name__ == "__main__":
    raise SystemExit(main())
