# SPDX-License-Identifier: Apache-2.0
"""The results page, its data and its plots say what the tables say."""

import re
from xml.etree import ElementTree

import pytest

from policy.report import charts
from tests.bench import results, results_claims, results_tables
from tests.bench.results_claims import CLAIMS, Claim
from tests.bench.results_tables import COLUMNS, FOLDER, Table

MADE = [make() for make in CLAIMS]
KEPT_NO_DAY = {"pal-runs", "placement-families", "placement-speed", "published", "simulate"}
"""Tables whose runs kept no day: only the day on which they came into the tables is known."""
EACH = pytest.mark.parametrize("claim", MADE, ids=lambda claim: claim.name)


def words(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own picture
    return [one.text or "" for one in root.iter() if one.tag.endswith("}text")]


def test_the_page_is_that_of_the_tables() -> None:
    assert (FOLDER / "README.md").read_text() == results.page(MADE), "run `make pictures`"


@EACH
def test_the_data_are_those_of_the_tables(claim: Claim) -> None:
    assert results.data_file(claim).read_text() == results.data(claim), "run `make pictures`"


@EACH
def test_the_plot_is_that_of_the_data(claim: Claim) -> None:
    if not charts.available():
        pytest.skip("matplotlib is not installed")

    kept = results.picture_file(claim).read_text()

    # Coordinates hang on the releases of matplotlib and numpy; what is written on the plot does not.
    assert words(kept) == words(results.draw(claim, results.kept(claim))), "run `make pictures`"


@EACH
def test_a_plot_names_each_row_and_its_unit(claim: Claim) -> None:
    shown = {word.strip() for word in words(results.picture_file(claim).read_text())}

    assert {claim.unit, *(row for row, *_ in claim.points)} <= shown


@EACH
def test_each_claim_says_its_command_and_its_day(claim: Claim) -> None:
    said = results.how(claim)

    assert "`make " in said
    assert re.search(r"20\d\d-\d\d-\d\d", said)
    assert "2 cores" in results.data(claim)


def test_no_plot_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == {claim.name for claim in MADE}
    # A page may link a table without a plot.
    linked = {name for page in FOLDER.glob("*.md") for name in re.findall(r"\(data/([\w-]+)\.csv\)", page.read_text())}
    assert {path.stem for path in (FOLDER / "data").iterdir()} == {claim.name for claim in MADE} | linked


def test_each_table_says_its_command_its_machine_and_its_day() -> None:
    notes = {one.name: one.notes for one in results_tables.tables()}

    assert len(notes) > 40
    assert [name for name, said in notes.items() if not said["command"].startswith(("make ", "python -m "))] == []
    assert [name for name, said in notes.items() if "cores" not in said["machine"]] == []
    assert {name for name, said in notes.items() if "date" not in said} <= KEPT_NO_DAY
    assert [
        said for said in notes.values() if not re.match(r"20\d\d-\d\d-\d\d", said.get("date") or said["recorded"])
    ] == []


def test_a_table_is_read_as_it_was_written() -> None:
    rows = [["a", "1", "ms", "b, c", "2", "0.5", "<= 3", "yes"]]
    table = Table("x", {"command": "make x", "date": "2026-11-30"}, "One `a`.\n\nTwo.", COLUMNS, rows)

    assert table.text().startswith("# command: make x\n# date: 2026-11-30\n#\n# One `a`.\n#\n# Two.\nfigure,")
    read = results_tables.parsed("x", table.text())
    assert (read.notes, read.remark, read.rows) == (table.notes, table.remark, rows)
    assert tuple(read.columns) == COLUMNS


def test_a_paragraph_takes_its_figures_from_the_tables() -> None:
    table = Table("x", {}, "", COLUMNS, [["a", "0.25", "ms", "b", "0.5", "0.5", "<= 1", "yes"]])

    said = results_claims._say("{a} {a:2} {a:%} {a:peer} {a:ratio} {a:less} {o.a} {n}", table, o=table, n="six")

    assert said == "0.25 0.25 25 % 0.5 0.50 50 % 0.25 six"
    with pytest.raises(KeyError):
        results_claims._say("{none}", table)


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"has no nothing\.csv"):
        results_tables.table("nothing")
