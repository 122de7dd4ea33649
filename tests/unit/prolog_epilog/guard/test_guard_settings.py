"""The guard's keys: defaults that can be told from each other, and errors that name the key."""

import ast
from pathlib import Path

import pytest

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.guard import settings
from prolog_epilog.guard.decide.choice import LAWS, chosen_law
from prolog_epilog.guard.settings import GuardSettings, settings_from


def test_an_empty_section_is_the_defaults() -> None:
    assert settings_from({}) == GuardSettings()


def test_keys_are_read_from_their_tables() -> None:
    read = settings_from({"law": "open", "bound": {"slowdown": 0.1}, "aimd": {"certain_beats": 4}})

    assert (read.law, read.bound.slowdown, read.aimd.certain_beats) == ("open", 0.1, 4)
    assert read.machine == GuardSettings().machine


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"boond": {}}, "[guard] has no key boond; did you mean bound?"),
        ({"bound": {"slowdwn": 0.1}}, "[guard] bound has no key slowdwn; did you mean slowdown?"),
        ({"bound": 0.05}, "[guard] bound is a table of keys"),
        ({"bound": {"slowdown": "5 %"}}, "[guard] bound slowdown is a number"),
        ({"bound": {"slowdown": -0.05}}, "not negative"),
        ({"machine": {"admit_s": True}}, "is a number"),
        ({"aimd": {"certain_beats": 2.5}}, "whole number"),
        ({"law": 1}, "[guard] law is a word"),
    ],
)
def test_a_wrong_key_is_named(section: dict[str, object], said: str) -> None:
    with pytest.raises(NodeConfigError) as error:
        settings_from(section)

    assert said in str(error.value)


def test_every_law_can_be_chosen_and_no_other() -> None:
    for name in LAWS:
        chosen_law(GuardSettings(law=name), 0.1, service=False)
    with pytest.raises(NodeConfigError, match="law is one of aimd, "):
        chosen_law(GuardSettings(law="bang"), 0.1, service=False)


def test_every_key_says_what_it_is() -> None:
    """Keys in a row may share the sentence below the last of them."""
    tree = ast.parse(Path(settings.__file__).read_text())
    tables = [item for item in tree.body if isinstance(item, ast.ClassDef)]
    assert len(tables) == 7
    for table in tables[:-1]:  # the last one is made of the others
        kinds = [isinstance(item, ast.AnnAssign) for item in table.body]
        assert ast.get_docstring(table), table.name
        assert not kinds[-1], f"the last key of {table.name} has no sentence"
        assert sum(kinds) <= 2 * (len(kinds) - sum(kinds)), f"{table.name} explains too few of its keys"
