# SPDX-License-Identifier: Apache-2.0
"""The Makefile: how many targets it has, and that the texts name targets and benchmarks that exist."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench import __main__ as bench

ROOT = Path(__file__).resolve().parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
BELOW = {
    target
    for file in ("slurm_plugins/Makefile", "tests/fuzz/Makefile")
    for target in re.findall(r"^([a-z][a-z0-9-]*)(?: [a-z0-9 -]*)?:(?!=)", (ROOT / file).read_text(), re.MULTILINE)
}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def commands(text: str) -> list[str]:
    """What a page says of make: in code spans, and at the beginning of a line of a block."""
    spans = re.findall(r"`(?:sudo )?make ([^`\n]+)`", text)
    return spans + re.findall(r"^ {4}(?:\$ )?(?:sudo )?make (.+)$", text, re.MULTILINE)


def test_there_are_few_targets_and_all_are_phony() -> None:
    made = set(re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE))

    assert made == TARGETS
    assert len(TARGETS) <= 35


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_targets_and_benchmarks_that_exist(page: Path) -> None:
    wrong = []
    for command in commands(page.read_text()):
        words = [word for word in command.partition("#")[0].split() if not word.startswith("-C")]
        targets = [word for word in words if re.fullmatch(r"[a-z][a-z0-9-]*", word)]
        named = re.findall(r"\bNAME=([\w-]+)", command)
        if targets and targets[0] not in TARGETS | BELOW:
            wrong.append(command)
        if not set(named) <= {"list", *bench.BENCHMARKS}:
            wrong.append(command)

    assert wrong == []


def test_every_benchmark_is_a_program() -> None:
    for name, one in bench.BENCHMARKS.items():
        program = bench.command(name, ["--more"])
        assert program[-1] == "--more"
        if one.module.endswith(".py"):
            assert (ROOT / one.module).is_file()
        else:
            assert find_spec(program[2]), name


def test_a_wrong_name_is_a_sentence_and_the_list_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["hok"]) == 2
    assert "there is no benchmark hok; did you mean hook" in capsys.readouterr().err
    assert bench.main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(bench.BENCHMARKS)


def test_make_passes_name_arguments_and_version_on() -> None:
    dry = ["make", "-n", "bench", "NAME=hook", "ARGS=--turns 6", "SLURM=26.05", "--old-file=setup"]
    said = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "SLURM=26.05 .venv/bin/python -m tests.bench hook --turns 6" in said


def test_a_benchmark_gets_its_own_words_and_a_real_slurm_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM", "26.05")

    assert bench.command("hook", ["--turns", "6"])[1:] == ["-m", "tests.bench.hook", "--slurm", "26.05", "--turns", "6"]
    assert bench.command("predictor", [])[1:] == ["-m", "tests.bench.predictor", "--nested", "12"]
    assert bench.command("events", [])[0] == sys.executable
