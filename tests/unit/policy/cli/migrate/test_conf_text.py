# SPDX-License-Identifier: Apache-2.0
"""Slurm's configuration as text: what is read, and that only what is asked for changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.migrate.conf_text import ConfLine, add_words, entries, set_value, value_of
from tests.unit.policy.cli.migrate.drawn import slurm_confs


@given(st.text(alphabet='aA=\\#" \t\r\n[],:0-1\x0b\x85é', max_size=80))
def test_the_lines_together_are_the_text(text: str) -> None:
    assert "".join(entry.raw for entry in entries(text)) == text
    for entry in entries(text):
        for pair in entry.pairs:
            assert entry.raw[pair.start : pair.end].strip('"').replace("\\\n", "")[:1] == pair.value[:1]


@given(slurm_confs())
def test_a_value_that_is_set_is_read_and_the_other_lines_stay(text: str) -> None:
    (changed,) = set_value([text], "JobSubmitPlugins", "lua,berth")

    assert value_of([changed], "jobsubmitplugins") == "lua,berth"
    kept = [entry.raw for entry in entries(text) if entry.key != "jobsubmitplugins"]
    assert [entry.raw for entry in entries(changed) if entry.key != "jobsubmitplugins"][: len(kept) - 1] == kept[:-1]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("GresTypes=gpu", "gpu"),
        ("grestypes = gpu,mps  # GresTypes=none", "gpu,mps"),
        ("GresTypes=gpu,\\\nmps\n", "gpu,mps"),
        ("GresTypes=gpu \\  \r\n  # end\n", "gpu"),
        ("# GresTypes=gpu", ""),
        ("GresTypes=a\nGresTypes=b\n", "b"),
        ("GresTypes=gpu # it goes on \\\nGresTypes=x", "x"),
    ],
)
def test_a_value_is_read_as_slurm_reads_it(line: str, value: str) -> None:
    assert value_of([line], "GresTypes") == value


def test_a_value_is_replaced_where_it_stands() -> None:
    line = ConfLine("NODENAME = n1 \\\n   gres= gpu:8   Weight=1 # gres=gpu:9\n")

    assert line.with_value("gpu:g0:1", "Gres").raw == ("NODENAME = n1 \\\n   gres= gpu:g0:1   Weight=1 # gres=gpu:9\n")
    assert line.with_value("a100", "Feature", "Features").raw == (
        "NODENAME = n1 \\\n   gres= gpu:8   Weight=1 Feature=a100 # gres=gpu:9\n"
    )


def test_words_are_added_once() -> None:
    assert add_words(["P=lua,x\n"], "P", "x") == ["P=lua,x\n"]
    assert add_words(["A=1", "P=x\n"], "P", "y") == ["A=1", "P=x,y\n"]
    assert add_words(["A=1"], "P", "y") == ["A=1\nP=y\n"]


def test_a_value_takes_the_place_of_all_others_where_it_has_to_stand_alone() -> None:
    assert set_value(["P=a\nQ=1\np=b # two\n", "P=c\n"], "P", "d", alone=True) == ["Q=1\n", "P=d\n"]
    assert set_value(["P=a\nQ=1\np=b # two\n"], "P", "d") == ["P=a\nQ=1\np=d # two\n"]


def test_a_value_that_goes_on_in_the_next_line_is_replaced_as_a_whole() -> None:
    line = ConfLine("Nodes=n1,\\\nn2 \\\n Weight=1\n")

    assert [(pair.key, pair.value) for pair in line.pairs] == [("Nodes", "n1,n2"), ("Weight", "1")]
    assert line.with_value("n3", "Nodes").raw == "Nodes=n3 \\\n Weight=1\n"
