# SPDX-License-Identifier: Apache-2.0
"""Which of our files a job's programs load, and what is said of one that they could not."""

from __future__ import annotations

from pathlib import Path

import pytest

from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import inject
from prolog_epilog.sharing.inject import HOOKS, LIBRARY


@pytest.mark.parametrize(
    ("inject_", "count_launches", "tier", "names"),
    [
        ("all", False, "opportunistic", {HOOKS, LIBRARY}),
        ("all", False, "guaranteed", {HOOKS}),
        ("all", True, "guaranteed", {HOOKS, LIBRARY}),
        ("all", True, "", set()),
        ("hooks", True, "opportunistic", {HOOKS}),
        ("none", True, "opportunistic", set()),
        ("managed", False, "opportunistic", {HOOKS, LIBRARY}),
        ("managed", False, "guaranteed", {HOOKS}),
    ],
)
def test_an_owner_is_heard_and_a_guest_is_held_too(
    inject_: str, *, count_launches: bool, tier: str, names: set[str]
) -> None:
    config = NodeConfig(inject=inject_, inject_from="/opt/b", count_launches=count_launches)
    found = inject.wanted(config, tier)
    assert found.keys() == names, "a job without a tier shares with none"
    assert {HOOKS: "/opt/b/share/berth/injob", LIBRARY: "/opt/b/lib/berth/libberth_injob.so"}.items() >= found.items()


@pytest.mark.parametrize(
    ("inject_", "owner", "guest"),
    [("all", {}, {}), ("retry", {"BERTH_MEMORY_RETRY": "1"}, {}), ("managed", {}, {"BERTH_MEMORY_MANAGED": "1"})],
)
def test_one_of_both_is_told_how_to_take_memory(inject_: str, owner: dict[str, str], guest: dict[str, str]) -> None:
    config = NodeConfig(inject=inject_)
    assert inject.variables(config, "guaranteed") == owner
    assert inject.variables(config, "opportunistic") == guest


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that all users may pass, with the hooks in it."""
    folder = tmp_path / "hooks"
    for one in (folder, *folder.parents[: len(folder.parts) - 2]):
        one.mkdir(exist_ok=True)
        one.chmod(one.stat().st_mode | 0o755)
    (folder / "sitecustomize.py").write_text("")
    (folder / "berth_injob.py").write_text("")
    return folder


def test_files_that_users_can_read_lack_nothing(installed: Path) -> None:
    assert inject.lack(HOOKS, str(installed)) == inject.fault(HOOKS, str(installed)) == ""
    library = installed / "sitecustomize.py"
    assert inject.lack(LIBRARY, str(library)) == "", "of a library the path is the file"
    library.unlink()
    assert inject.lack(HOOKS, str(installed)).startswith(f"{library}: No such file or directory; ")


@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("sitecustomize.py", 0o666, "all users may write {file}; chmod o-w {file}"),
        ("sitecustomize.py", 0o640, "users cannot read {file}; give them the right, to its folders too"),
        ("", 0o750, "users cannot read {file}; give them the right, to its folders too"),
    ],
)
def test_each_lack_is_one_sentence_with_its_cure(installed: Path, name: str, mode: int, says: str) -> None:
    (installed / name).chmod(mode)
    wanted = says.format(file=installed / "sitecustomize.py")
    assert inject.lack(HOOKS, str(installed)) == inject.fault(HOOKS, str(installed)) == wanted


def test_a_folder_in_place_of_the_file_is_named(installed: Path) -> None:
    (installed / "sitecustomize.py").unlink()
    (installed / "sitecustomize.py").mkdir()
    assert inject.lack(HOOKS, str(installed)).startswith(f"{installed}/sitecustomize.py is not a file; ")


@pytest.mark.parametrize(
    ("code", "says"),
    [("raise ValueError('it is torn.')", "ValueError: it is torn"), ("raise SystemExit(3)", "exit status 3")],
)
def test_what_only_use_finds_is_told_with_the_last_line(installed: Path, code: str, says: str) -> None:
    (installed / "berth_injob.py").write_text(code)
    assert inject.lack(HOOKS, str(installed)) == ""
    assert inject.fault(HOOKS, str(installed)).startswith(f"{installed}: {says}; ")
