# SPDX-License-Identifier: Apache-2.0
"""What `make mutants` changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.bench import mutants
from tests.bench.coverage import ROOT
from tests.bench.mutants import by_folder
from tests.bench.mutator import Mutant

SOURCE = "LEAST = 4\n\n\ndef enough(count: int) -> bool:\n    return count >= LEAST\n"
TOOK = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_slow" time="2.5"/>
<testcase classname="tests.test_a" name="test_quick[1]" time="0.1"/>
<testcase classname="tests.test_a" name="test_importer" time="0.1"/>
<testcase classname="tests.test_a" name="test_failing" time="0.1"><failure/></testcase>
</testsuite></testsuites>"""


def test_each_file_that_is_to_be_changed_is_there() -> None:
    groups = by_folder()
    drawn = [path for paths in groups.values() for path in paths]
    assert [path for path in drawn if not (ROOT / path).is_file()] == []
    assert len(set(drawn)) == len(drawn)
    assert {"policy/plan/ledger/tracker.py", "policy/cluster/untyped.py", "policy/slurm/fields.py"} <= set(drawn)
    assert {"policy/plan", "policy/daemon", "topology", "prolog_epilog/guard"} <= groups.keys()


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mutants.Tests:
    """Those of a file whose constant on line 1 is used on line 5; one test imported it, and others ran it."""
    (tmp_path / "policy.py").write_text(SOURCE)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "constants.py").write_text("MOST = {4: 5}\n")
    (tmp_path / "policy" / "user.py").write_text(
        "from policy import constants\n\n\ndef most():\n    return constants\n"
    )
    (tmp_path / "took-a.xml").write_text(TOOK)
    data = CoverageData(str(tmp_path / "data"))
    for name, lines in {"importer": [1, 4], "slow": [5], "quick": [5], "failing": [5]}.items():
        data.set_context(f"tests.test_a.test_{name}")
        data.add_lines({"policy.py": lines})
        data.add_lines({"policy/user.py": [5] if name == "slow" else [], "policy/constants.py": []})
    data.write()
    for name, value in {"ROOT": tmp_path, "FOLDER": tmp_path, "DATA": tmp_path / "data"}.items():
        monkeypatch.setattr(mutants, name, value)
    return mutants.Tests()


def test_a_changed_line_is_tried_with_the_tests_that_ran_it_and_passed_the_quickest_first(tests: mutants.Tests) -> None:
    changed = Mutant(5, 0, 0, "", "", ())

    assert tests.of("policy.py", changed) == ["tests.test_a.test_quick", "tests.test_a.test_slow"]


def test_a_constant_is_tried_with_the_tests_that_ran_a_line_with_its_name_not_with_the_one_that_imported_it(
    tests: mutants.Tests,
) -> None:
    changed = Mutant(1, 0, 0, "4", "5", ("LEAST",))

    assert tests.of("policy.py", changed) == ["tests.test_a.test_quick", "tests.test_a.test_slow"]


def test_a_file_that_only_its_import_runs_is_tried_with_the_tests_of_the_files_that_import_it(
    tests: mutants.Tests,
) -> None:
    changed = Mutant(1, 0, 0, "4", "5", ("MOST",))

    assert tests.of("policy/constants.py", changed) == ["tests.test_a.test_slow"]


def test_the_share_is_told_of_each_folder_of_each_part_and_of_all() -> None:
    counts = {
        "policy/plan": Counter({"killed": 3, "timeout": 1}),
        "policy/site": Counter({"killed": 1, "survived": 3}),
        "topology": Counter({"killed": 9, "survived": 1}),
    }

    assert [(one.name, one.value, one.unit, one.good) for one in mutants.shares(counts)] == [
        ("policy/plan", 100.0, "% of 4 (1 by time)", True),
        ("policy/site", 25.0, "% of 4 (0 by time)", False),
        ("topology", 90.0, "% of 10 (0 by time)", True),
        ("all of policy", 62.5, "% of 8 (1 by time)", False),
        ("all of topology", 90.0, "% of 10 (0 by time)", True),
        ("all", 77.77777777777777, "% of 18 (1 by time)", False),
    ]
