# SPDX-License-Identifier: Apache-2.0
"""One table of berth.conf's keys: what is written from it is not stale, and the code has its defaults."""

import re
from pathlib import Path

import pytest

from policy.site.config import Config, load
from prolog_epilog.settings.keys import NodeConfig
from tests.conf_keys import MADE, ROOT, TABLES

READERS = {"plugin", "berthd", "node", "commands"}


@pytest.mark.parametrize("path", MADE["outputs"](), ids=str)
def test_what_is_written_from_the_table_is_not_stale(path: Path) -> None:
    assert (ROOT / path).read_text() == MADE["outputs"]()[path], "make keys"


def test_each_key_has_a_sentence_a_default_and_readers() -> None:
    for table in TABLES:
        for name, key in table.keys.items():
            assert key["text"], name
            assert ("default" in key) != ("unset" in key), name
            assert set(key.get("readers", table.readers)) <= READERS, name
            assert ("words" in key) == (key["type"] == "word"), name


def test_an_empty_file_is_the_defaults_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "berth.conf").write_text("")

    assert load(tmp_path / "berth.conf") == load(tmp_path / "none") == Config()


def test_the_shell_script_before_the_prolog_looks_for_keys_that_exist() -> None:
    """A word of its patterns is a key of [node], or the beginning of several."""
    script = (ROOT / "prolog_epilog" / "front" / "berth-prolog").read_text().partition("\n\tcase $line in\n")[2]
    patterns = " ".join(re.findall(r"^\t(.*?)\) ", script, re.MULTILINE)).replace("$context", "")
    words = set(re.findall(r"[a-z][a-z_]+", patterns)) - {"node"}

    assert words == {"chain_", "chain_epilog", "jobs_for_", "log", "scontrol"}
    assert [word for word in words if not any(key.startswith(word) for key in NodeConfig._fields)] == []
