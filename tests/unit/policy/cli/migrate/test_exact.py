# SPDX-License-Identifier: Apache-2.0
"""What a node is listed with in the exact layout: the words that its topology file makes."""

from pathlib import Path

import pytest

from policy.cli.migrate.exact import exact_words
from policy.formats.errors import BerthError
from topology import files
from topology.machines import machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, kind in {"n1": "l40s", "n2": "hgx-h100", "n3": "l40s"}.items():
        files.dump(machine(kind, name), tmp_path / f"{name}.json")
    return tmp_path


def test_each_node_gets_its_model_a_type_for_each_gpu_and_the_lines_of_its_kind(folder: Path) -> None:
    words = exact_words(["n1", "n2", "n3"], folder, cores=False)

    assert {name: one.model for name, one in words.items()} == {"n1": "l40s", "n2": "h100", "n3": "l40s"}
    assert {name: one.gres.count("gpu:g") for name, one in words.items()} == {"n1": 4, "n2": 8, "n3": 4}
    assert words["n1"].gres_lines == words["n3"].gres_lines
    own = {name: [line for line in one.gres_lines if "Name=gpu" in line] for name, one in words.items()}
    assert {len(lines) for lines in (own["n1"], own["n3"])} == {4}
    assert all(line.startswith("NodeName=n[1,3] ") for line in own["n1"])
    assert all(line.startswith("NodeName=n2 ") and "Links=" in line for line in own["n2"])


@pytest.mark.parametrize(
    ("names", "cores", "says"),
    [
        (["n1", "n4"], False, r"^n4 cannot be laid out: .*; run berth topo discover there; or name the nodes that can"),
        (["n4", "n5"], False, r"^n4 \(and n5\) cannot be laid out"),
        (["n1"], True, "^n1 cannot be laid out: how Slurm counts its cores is not known"),
    ],
)
def test_where_a_node_cannot_be_laid_out_no_words_are_made_and_the_error_says_why(
    folder: Path, names: list[str], cores: bool, says: str
) -> None:
    with pytest.raises(BerthError, match=says):
        exact_words(names, folder, cores=cores)
