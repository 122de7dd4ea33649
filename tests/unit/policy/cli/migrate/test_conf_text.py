"""Slurm's configuration as text: what is read, and that only what is asked for changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.migrate.conf_text import ConfLine, add_words, entries, remove_word, set_value, value_of
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


def test_words_are_added_once_and_last_where_they_have_to_be() -> None:
    assert add_words(["P=lua\n"], "P", "berth", last=True) == ["P=lua,berth\n"]
    assert add_words(["P=berth,lua\n"], "P", "berth", last=True) == ["P=lua,berth\n"]
    assert add_words(["A=1", "P=x\n"], "P", "y") == ["A=1", "P=x,y\n"]
    assert add_words(["A=1"], "P", "y") == ["A=1\nP=y\n"]


def test_a_word_is_taken_out_with_its_line_where_none_is_left() -> None:
    assert remove_word(["P=lua,berth\nQ=berth\n"], "P", "berth") == ["P=lua\nQ=berth\n"]
    assert remove_word(["P=berth\nQ=1\n"], "P", "berth") == ["Q=1\n"]
