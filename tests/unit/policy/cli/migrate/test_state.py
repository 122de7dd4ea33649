# SPDX-License-Identifier: Apache-2.0
"""The copies that undo a change: atomic, complete, and never over somebody's work."""

from pathlib import Path

import pytest

from policy.cli.migrate.state import Change, ChangedByOthersError, ChangeStore, FileChange, put
from policy.formats.errors import BerthError


def applied(folder: Path) -> tuple[ChangeStore, Path, Path]:
    old, made = folder / "slurm.conf", folder / "plugstack.conf"
    old.write_bytes(b"A=1\r\n\xff")
    old.chmod(0o640)
    store = ChangeStore(folder / "state")
    files = (FileChange(old, old.read_bytes(), b"A=2\n"), FileChange(made, None, b"optional x\n"))
    with store.locked():
        store.apply(Change(0, "advise", "observe", (), 0.0, files, ("sacctmgr x",)))
    return store, old, made


def test_a_change_is_written_with_the_rights_that_the_file_had_and_undone(tmp_path: Path) -> None:
    store, old, made = applied(tmp_path)
    assert (old.read_bytes(), made.read_bytes(), old.stat().st_mode & 0o777) == (b"A=2\n", b"optional x\n", 0o640)

    (change,) = ChangeStore(tmp_path / "state").changes()
    store.undo([change])

    assert (change.rung, change.back, old.read_bytes(), made.exists()) == (
        "advise",
        ("sacctmgr x",),
        b"A=1\r\n\xff",
        False,
    )
    assert old.stat().st_mode & 0o777 == 0o640
    assert store.changes() == []


def test_a_file_that_others_changed_is_named_and_nothing_is_restored(tmp_path: Path) -> None:
    store, old, made = applied(tmp_path)
    made.write_text("optional x\noptional ours\n")

    with pytest.raises(ChangedByOthersError, match=r"plugstack\.conf was changed since.*diff \S+/001/after/1"):
        store.undo(store.changes())

    assert old.read_bytes() == b"A=2\n"


def test_a_change_that_broke_off_is_undone_as_far_as_it_came(tmp_path: Path) -> None:
    store, old, made = applied(tmp_path)
    made.unlink()

    store.undo(store.changes())

    assert (old.read_bytes(), made.exists()) == (b"A=1\r\n\xff", False)


def test_a_copy_that_is_damaged_is_not_restored(tmp_path: Path) -> None:
    store, old, _ = applied(tmp_path)
    (tmp_path / "state" / "001" / "before" / "0").write_bytes(b"A=0\n")

    with pytest.raises(BerthError, match=r"before/0 is not the copy of \S+slurm\.conf"):
        store.changes()

    assert old.read_bytes() == b"A=2\n"


def test_a_second_berth_migrate_is_kept_out(tmp_path: Path) -> None:
    store = ChangeStore(tmp_path / "state")
    with store.locked(), pytest.raises(BerthError, match="in use by another"), ChangeStore(tmp_path / "state").locked():
        pass


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "slurm.conf"
    target.write_text("A=1\n")
    link.symlink_to(target)

    put(link, b"A=2\n")

    assert link.is_symlink()
    assert target.read_text() == "A=2\n"
