"""The node's part of a pre-flight: a script runs for a bounded time, until it works; a failure is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policy.cli.main import main as berth
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import InjobError
from prolog_epilog.preflight import runner
from tests.programs import python_program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RUNNER = [sys.executable, "-I", "-m", "prolog_epilog.preflight.runner"]
PYTHON = sys.executable


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """What a script's environment has on a node; temporary files are where they can be counted."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path), "PYTHONSAFEPATH": ""}


def script(tmp_path: Path, text: str, head: str = "#!/bin/bash") -> Path:
    file = tmp_path / "script"
    file.write_bytes(f"{head}\n{text}\n".encode())
    file.chmod(0o755)
    return file


def fly(
    world: dict[str, str], file: Path, *words: str, seconds: int = 30
) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    command = [*RUNNER, f"--seconds={seconds}", "--", str(file), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=world, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    return done, time.monotonic() - began


def test_a_script_that_ends_before_its_first_step_ends_the_preflight_with_its_status(
    world: dict[str, str], tmp_path: Path
) -> None:
    for status in (0, 1, 77):
        done, _ = fly(world, script(tmp_path, f"echo out; echo err >&2; exit {status}"))
        assert (done.returncode, done.stdout) == (status, "out\n")
        assert "err\n" in done.stderr
    assert "failed with exit status 77" in done.stderr


def test_a_typo_is_told_at_once(world: dict[str, str], tmp_path: Path) -> None:
    done, took = fly(world, script(tmp_path, "set -e\npyhton train.py"))

    assert done.returncode == 127
    assert "pyhton: command not found" in done.stderr
    assert took < 25


def test_a_signal_that_killed_the_script_is_told_as_a_shell_tells_it(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "kill -SEGV $$"))

    assert done.returncode == 128 + signal.SIGSEGV
    assert "SIGSEGV" in done.stderr


def test_the_words_of_the_script_are_its_own(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, 'printf "%s|" "$@"'), "a b", "--seconds=1", "$x", "")

    assert done.stdout == "a b|--seconds=1|$x||"


@pytest.mark.parametrize("head", ["#!PYTHON", "#!/usr/bin/env python3", "#! PYTHON -u"])
def test_any_interpreter_will_do(world: dict[str, str], tmp_path: Path, head: str) -> None:
    # The path of a checkout may hold a space, which ends an interpreter's name.
    (tmp_path / "interpreter").symlink_to(Path(PYTHON).resolve())
    head = head.replace("PYTHON", str(tmp_path / "interpreter"))
    done, _ = fly(world, script(tmp_path, "import os, sys\nprint(os.environ['BERTH_PREFLIGHT'])\nsys.exit(3)", head))

    assert (done.returncode, done.stdout) == (3, "1\n")


def test_a_script_that_cannot_be_started_is_its_own_failure(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "true", "#!/no/such/shell"))

    assert done.returncode == 127
    assert "Traceback" not in done.stderr


def test_the_first_step_of_a_program_ends_it_well(world: dict[str, str], tmp_path: Path) -> None:
    text = "import time, berth_injob\nfor _ in range(100):\n    time.sleep(0.3)\n    berth_injob.step()"
    done, took = fly(world, script(tmp_path, f"'{PYTHON}' - <<'END'\n{text}\nEND\necho not reached"))

    assert done.returncode == 0
    assert "its first step was done after" in done.stderr
    assert "not reached" not in done.stdout
    assert took < 28


def test_ready_ends_it_well(world: dict[str, str], tmp_path: Path) -> None:
    done, took = fly(world, script(tmp_path, f"'{PYTHON}' -m policy.cli.main ready; sleep 50"))

    assert done.returncode == 0
    assert "it said that it is ready" in done.stderr
    assert took < 28


def test_berth_ready_elsewhere_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BERTH_PREFLIGHT", raising=False)
    monkeypatch.setenv("BERTH_READY", str(tmp_path / "no" / "where"))
    assert berth(["ready"]) == 0
    monkeypatch.setenv("BERTH_PREFLIGHT", "1")
    assert berth(["ready"]) == 1


def test_it_never_takes_longer_than_its_time(world: dict[str, str], tmp_path: Path) -> None:
    """Not even where the script and what it starts do not listen."""
    done, took = fly(world, script(tmp_path, "trap '' TERM\n(trap '' TERM; sleep 60) &\nsleep 60"), seconds=4)

    assert done.returncode == 0
    assert "nothing went wrong in 3 s" in done.stderr
    # The script would take a minute.
    assert took < 30


def test_nothing_stays_behind(world: dict[str, str], tmp_path: Path) -> None:
    fly(world, script(tmp_path, f"sleep 61 & echo $! >{tmp_path}/child; sleep 62"), seconds=1)

    assert not list((tmp_path / "tmp").iterdir())
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_preflight_that_is_told_to_go_passes_it_on(world: dict[str, str], tmp_path: Path) -> None:
    file = script(tmp_path, "trap 'echo saved; exit 9' TERM\necho up\nwhile :; do sleep 0.1; done")
    runner = subprocess.Popen(
        [*RUNNER, "--seconds=30", "--", str(file)], cwd=ROOT, env=world, stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    with runner.stdout:
        assert runner.stdout.readline() == "up\n"
        runner.terminate()
        assert runner.wait(20) == 9
        assert "saved" in runner.stdout.read()


LOST = "RuntimeError: NCCL communicator was aborted: Connection reset by peer"


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        (LOST, 0, "mpi_runtime_failure: that says nothing against the job"),
        ("CUDA error: uncorrectable ECC error encountered", 0, "gpu_ecc_error"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", 0, "gpu_out_of_memory"),
        ("ModuleNotFoundError: No module named 'apex'", 1, "failed with exit status 1"),
        ("nothing that anybody knows", 1, "failed with exit status 1"),
        (f"{LOST}\nModuleNotFoundError: No module named 'apex'", 1, "failed with exit status 1"),
    ],
)
def test_what_may_pass_by_itself_says_nothing_against_the_job(
    world: dict[str, str], tmp_path: Path, said: str, status: int, told: str
) -> None:
    file = script(tmp_path, f'echo "{said}" >&2; exit 1')
    log = tmp_path / "log"
    with log.open("w") as out:
        done = subprocess.run(
            [*RUNNER, "--seconds=60", "--", str(file)], cwd=ROOT, env=world, stdout=out, stderr=out, check=False
        )

    assert (done.returncode, told in log.read_text()) == (status, True)


def launcher(tmp_path: Path, name: str, folder: str = "bin") -> Path:
    """A launcher that only prints what it is asked for."""
    file = tmp_path / folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('#!/bin/sh\necho "launched $@"\n')
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("shell", ["#!/bin/bash", "#!/bin/sh"])
def test_launchers_start_one_process(world: dict[str, str], tmp_path: Path, shell: str) -> None:
    for name in ("torchrun", "mpirun"):
        launcher(tmp_path, name)
    text = "torchrun --nnodes=4 --nproc_per_node 8 train.py --nnodes=4\nmpirun -np 32 ./train"
    done, _ = fly(world, script(tmp_path, text, shell))

    assert done.stdout.splitlines() == [
        "launched --nnodes=1 --nproc-per-node=1 --node-rank=0 train.py --nnodes=4",
        "launched -np 1 ./train",
    ]


def test_an_environment_that_a_script_loads_hides_nothing_from_it(world: dict[str, str], tmp_path: Path) -> None:
    """`conda activate` and `module load` put their own programs in front of PATH."""
    launcher(tmp_path, "mpirun", "env")
    done, _ = fly(world, script(tmp_path, f"PATH={tmp_path}/env:$PATH\nmpirun -n 8 ./train"))

    assert done.stdout == "launched -np 1 ./train\n"


def test_a_python_launcher_is_caught_whatever_its_path(world: dict[str, str], tmp_path: Path) -> None:
    file = launcher(tmp_path, "torchrun", "env")
    python_program(file, "import sys\nprint(sys.argv[1:])\n")
    done, _ = fly(world, script(tmp_path, f"env {file} --nproc-per-node=8 train.py"))

    assert "'--nproc-per-node=1'" in done.stdout


def test_a_launcher_that_is_not_there_is_missed_as_ever(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly(world, script(tmp_path, "deepspeed train.py"))

    assert done.returncode == 127
    assert "deepspeed: command not found" in done.stderr


def test_a_user_may_keep_berth_out_of_the_program(world: dict[str, str], tmp_path: Path) -> None:
    done, _ = fly({**world, "BERTH_INJOB": "off"}, script(tmp_path, 'echo "[$PYTHONPATH][$BERTH_WORD]"'))

    assert done.stdout == "[][]\n"


@pytest.mark.parametrize("fault", [InjobError("no page for job 7"), OSError(28, "No space left on device")])
def test_a_script_of_which_no_step_can_be_seen_is_run_and_that_is_said(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(word, "create", fail)

    environment = runner.prepare(tmp_path, {"PATH": "/usr/bin"})

    assert "BERTH_WORD" not in environment
    assert environment["PATH"].endswith(":/usr/bin")
    assert f"berth-preflight: no step of the script can be seen: {fault}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--seconds=x", "--", "a"], ["--seconds=5", "a", "b"], ["launch"]])
def test_called_in_a_wrong_way_it_says_how(words: list[str]) -> None:
    done = subprocess.run([*RUNNER, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("berth-preflight: usage:")
