# SPDX-License-Identifier: Apache-2.0
"""The completion of each shell knows each command and each option of `berth`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from policy.cli.main import build_parser
from tests.real.packages import FISH, ZSH, program
from tests.unit.repository.test_man_pages import commands, options

pytest.importorskip("shtab", reason="shtab is not installed; make setup brings it")

ROOT = Path(__file__).parents[3]
COMMANDS = dict(commands(build_parser()))
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    generator = ROOT / "packaging" / "completions.py"
    told = [[sys.executable, str(generator), shell] for shell in SHELLS]
    return {
        shell: subprocess.run(words, check=True, capture_output=True, text=True).stdout
        for shell, words in zip(SHELLS, told, strict=True)
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_each_command_and_option_is_known(written: dict[str, str], shell: str) -> None:
    # fish writes an option without its dashes: -l json.
    known = set(re.findall(r"[\w-]+", written[shell]))

    for command, parser in COMMANDS.items():
        assert set(command.split()) <= known
        for option in options(parser):
            assert {option, option.lstrip("-")} & known, f"{command} {option}"


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in (ZSH, FISH))])
def test_the_shell_itself_takes_it(written: dict[str, str], shell: str, tmp_path: Path) -> None:
    here = shutil.which(shell)
    words = [here] if here else program(shell, {ZSH: "bin/zsh", FISH: "usr/bin/fish"}[shell])
    if isinstance(words, str):
        pytest.skip(f"{shell} is not installed, and cannot be fetched: {words}")
    script = tmp_path / "completion"
    script.write_text(written[shell])

    done = subprocess.run([*words, "-n", str(script)], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed here")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["berth", "wh"], {"why"}),
        (["berth", "topo", "d"], {"discover", "draw"}),
        (["berth", "why", "--j"], {"--json"}),
    ],
)
def test_bash_completes(written: dict[str, str], words: list[str], expected: set[str], tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(written["bash"])
    ask = (
        f'source "{script}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        f'function_of=$(complete -p berth | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        f'"$function_of" berth "{words[-1]}" "{words[-2]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )

    done = subprocess.run(["bash", "-c", ask], check=False, capture_output=True, text=True)

    assert {word.strip() for word in done.stdout.split()} == expected, done.stderr
