# SPDX-License-Identifier: Apache-2.0
"""What `make test` says and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import all as everything


@pytest.mark.parametrize(
    ("words", "tools", "well", "status", "said"),
    [
        ([], True, True, 0, "all is well"),
        ([], True, False, 1, ""),
        (["--without-clusters"], True, True, 3, "not run: the tests on Slurm 24.11 and 26.05"),
        (["--without-clusters"], True, True, 3, "the whole plugin (Slurm's headers come with the first image)"),
        ([], False, True, 3, "not run: fuzzing"),
        (["--without-clusters"], False, False, 1, ""),
    ],
)
def test_the_status_says_whether_all_was_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    *,
    tools: bool,
    well: bool,
    status: int,
    said: str,
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "TOOK", tmp_path / "took")
    monkeypatch.setattr(everything, "succeeds", lambda *_: tools)

    def run(parts: list[everything.Part]) -> bool:
        ran.extend(part.name for part in parts)
        return well

    monkeypatch.setattr(everything, "run", run)

    assert everything.main(words) == status
    assert ran == ["units", *(["fuzz"] if tools else []), *([] if words else ["plugin", "24.11", "26.05"])]
    assert said in capsys.readouterr().out


def test_what_needs_slurms_headers_waits_for_the_image_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "TOOK", tmp_path / "took")
    (tmp_path / "test_it.py").write_text(
        f"import pathlib\ndef test_it(): assert pathlib.Path({str(tmp_path / 'headers')!r}).exists()\n"
    )

    def built(*_: str) -> bool:
        (tmp_path / "headers").touch()
        return True

    monkeypatch.setattr(everything, "succeeds", built)

    assert everything.run([everything.Part("plugin", ["test_it.py"]), everything.Part("24.11", ["--version"])])


def test_the_whole_plugin_is_tested_without_clusters_where_an_image_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[everything.Part] = []
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "succeeds", lambda *_: True)
    monkeypatch.setattr(everything, "run", lambda parts: bool(ran.__iadd__(parts)))
    (tmp_path / "headers" / "24.11").mkdir(parents=True)

    assert everything.main(["--without-clusters"]) == everything.NOT_ALL
    assert [part.name for part in ran] == ["units", "fuzz", "plugin"]


@pytest.mark.parametrize(("user", "said"), [(0, "all is well\n"), (1000, "; what only root can do was skipped\n")])
def test_an_ordinary_user_is_told_what_was_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, user: int, said: str
) -> None:
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "succeeds", lambda *_: True)
    monkeypatch.setattr(everything, "run", lambda _: True)
    monkeypatch.setattr("os.geteuid", lambda: user)

    assert everything.main([]) == 0
    assert capsys.readouterr().out.endswith(said)


def test_a_part_that_fails_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "TOOK", tmp_path / "took")
    count = tmp_path / "count"
    (tmp_path / "test_it.py").write_text(
        f"def test_it():\n    open({str(count)!r}, 'a').write('x')\n    assert {str(count)!r} == 'the reason'\n"
    )

    assert not everything.run([everything.Part("units", ["test_it.py"])])
    assert count.read_text() == "x"
    assert "the reason" in capsys.readouterr().out
    assert not (tmp_path / "took").exists()


def test_progress_is_pytests_own_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(everything, "BUILD", tmp_path)
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    part = everything.Part("units", ["--version"])
    assert part.progress() == "not begun"
    part.start()
    assert part.process
    part.process.wait(60)
    assert part.progress() == "done"
