# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the results page, its data files and its plots, all from docs/results/tables.

The tables are renewed by `make measurements`. From them come the data of each plot (docs/results/data/NAME.csv), from
the data the plots (docs/results/NAME.svg), and from all the page (docs/results/README.md).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from tests.bench import results_charts
from tests.bench.results_claims import CLAIMS, Claim
from tests.bench.results_tables import FOLDER, Table, tables

INTRO = """# Results

One plot for each claim. `make measurements` renews the [tables](#all-tables), `make pictures` the plots and this page.

* None of the plots is of a real GPU. Drivers, MPS and links are simulated, or a model fitted on published measurements.
  What one H200 showed: [gpu.md](gpu.md).
* Figures beside each other are of one run on one machine, with 2 cores; each table names it.
  [Bounds that were missed](#bounds-that-were-missed) are at the end.
* More: [rules of placement](placement-rules.md), [Slurm's own rules](slurm-rules.md), [PAL's simulations](pal.md),
  [racks](racks.md), [releases and credentials](cells.md), [request forms](request-forms.md),
  [as on plain Slurm](like-plain.md), [the roll-out](rollout.md), [failures](failures.md),
  [berthd under load](../develop/load.md), [worlds](worlds.md), [campaigns](campaign.md),
  [the layout of the code](house.md), [the papers' headlines beside ours](papers.md).
"""


def main() -> int:
    (FOLDER / "data").mkdir(exist_ok=True)
    claims = [make() for make in CLAIMS]
    for claim in claims:
        data_file(claim).write_text(data(claim), encoding="utf-8")
        picture_file(claim).write_text(draw(claim, kept(claim)), encoding="utf-8")
    (FOLDER / "README.md").write_text(page(claims), encoding="utf-8")
    print(f"pictures: wrote docs/results/README.md and {len(claims)} plots")
    return 0


def data_file(claim: Claim) -> Path:
    return FOLDER / "data" / f"{claim.name}.csv"


def picture_file(claim: Claim) -> Path:
    return FOLDER / f"{claim.name}.svg"


def data(claim: Claim) -> str:
    """The text of a plot's data file: how it was measured, then one line for each bar or point."""
    said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", how(claim)).replace("`", "")
    head = "; ".join(filter(None, (said, machines(claim))))
    return f"# {head}\n" + frame(claim).to_csv(index=False, lineterminator="\n")


def kept(claim: Claim) -> pd.DataFrame:
    """Returns what a plot's data file holds."""
    return pd.read_csv(data_file(claim), comment="#")


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
        parts.append(f"*{how(claim)}.* [Data](data/{data_file(claim).name})\n")
    parts.append("\n## Bounds that were missed\n\n| figure | value | bound | table |\n| --- | --- | --- | --- |")
    parts += missed()
    parts.append("\n## All tables\n\nEach file says its command, its machine, its day and what its figures are.\n")
    parts.append("| table | command | day | rows | missed |\n| --- | --- | --- | --- | --- |")
    parts += [*contents(), ""]
    return "\n".join(parts)


def missed() -> Iterator[str]:
    """Yields a row for each figure of the tables that missed its bound."""
    for one in tables():
        for name, value, unit, *_, must, _ in one.missed:
            bound = must.replace("<=", "at most").replace(">=", "at least")
            yield f"| `{name}` | {f'{value} {unit}'.strip()} | {bound} | [{one.name}]({one.link}) |"


def contents() -> Iterator[str]:
    """Yields a row for each table."""
    for one in tables():
        yield f"| [{one.name}]({one.link}) | `{one.command}` | {day(one)} | {len(one.rows)} | {len(one.missed) or ''} |"


def day(one: Table) -> str:
    """Returns when a table was made; a few kept only the day on which they came into the tables."""
    return one.notes.get("date") or f"by {one.notes['recorded'].split()[0]}"


def how(claim: Claim) -> str:
    """Commands and day of a claim, from the notes of its tables."""
    return "; ".join(
        one if isinstance(one, str) else f"[`{one.command}`]({one.link}), {day(one)}" for one in claim.sources
    )


def machines(claim: Claim) -> str:
    """Machines and versions of a claim."""
    said = (f"{one.notes['machine']}, {one.notes.get('slurm', '')}" for one in claim.sources if isinstance(one, Table))
    return "; ".join(dict.fromkeys(one.removesuffix(", ") for one in said))


if __name__ == "__main__":
    raise SystemExit(main())
