# SPDX-License-Identifier: Apache-2.0
"""Hooks and library as they are installed: put into jobs by the Prolog, tried by the doctor, bound into containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog import doctor
from prolog_epilog.errors import NodeConfigError
from prolog_epilog.injob import word
from prolog_epilog.injob.word import OrderPage, read_beats
from prolog_epilog.settings import config
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import inject
from prolog_epilog.tenants import share_file
from tests.fakes.place import make
from tests.rights import needs_root
from tests.unit.node_world import ROOT, World, berth

GUEST = {"tier": "opportunistic", "way": "time"}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make install` lays down, below a prefix of its own."""
    target = tmp_path_factory.mktemp("installed")
    make(ROOT / "prolog_epilog/injob/c", "install", f"DESTDIR={target}")
    return target / "usr"


@pytest.fixture
def prefix(made: Path) -> Iterator[Path]:
    """The same where all users can go, which pytest's own folders are not for."""
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        shutil.copytree(made, Path(folder) / "usr", symlinks=True)
        Path(folder).chmod(0o755)
        yield Path(folder) / "usr"


@pytest.fixture
def world(prefix: Path) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        one = World(Path(folder))
        one.with_gpus()
        one.settings |= {"inject": "all", "inject_from": str(prefix)}
        yield one


def prolog(world: World, tier: str) -> tuple[dict[str, str], str]:
    """What a job of this tier gets put before its own, and what slurmd's log says."""
    world.slurm_knows("seat:g2:1(IDX:2)" if tier == "opportunistic" else "gpu:g2:1(IDX:2)")
    done = world.run("prolog", berth(2, tier=tier, way="time"), "" if tier == "opportunistic" else "2")
    assert done.returncode == 0
    file = share_file.read(world.paths, 7)
    assert file is not None
    assert not file.degraded
    assert "BERTH_WORD" in file.environment
    return dict(file.prepend), done.stderr


@pytest.mark.parametrize(
    ("choice", "tier", "names"),
    [
        ("none", "guaranteed", []),
        ("none", "opportunistic", []),
        ("hooks", "guaranteed", ["PYTHONPATH"]),
        ("hooks", "opportunistic", ["PYTHONPATH"]),
        ("all", "guaranteed", ["PYTHONPATH"]),
        ("all", "opportunistic", ["PYTHONPATH", "LD_PRELOAD"]),
    ],
)
def test_each_tier_gets_what_it_needs_and_the_site_wants(
    world: World, prefix: Path, choice: str, tier: str, names: list[str]
) -> None:
    world.settings["inject"] = choice
    paths = {
        "PYTHONPATH": f"{prefix}/share/berth/injob",
        "LD_PRELOAD": f"{prefix}/lib/berth/libberth_injob.so",
    }
    assert prolog(world, tier) == ({name: paths[name] for name in names}, "")


@pytest.mark.parametrize(
    ("choice", "names"), [("none", []), ("hooks", ["PYTHONPATH"]), ("all", ["PYTHONPATH", "LD_PRELOAD"])]
)
def test_a_host_whose_launches_are_counted_gets_the_library_too(
    world: World, prefix: Path, choice: str, names: list[str]
) -> None:
    world.settings |= {"inject": choice, "inject_from": str(prefix), "count_launches": True}
    assert list(prolog(world, "guaranteed")[0]) == names


def test_a_packed_job_gets_none_of_it(world: World) -> None:
    world.run("prolog", berth(2, share=30, way="time"), "2")
    file = share_file.read(world.paths, 7)
    assert file is not None
    assert file.prepend == {}


def break_library(prefix: Path) -> None:
    (prefix / "lib" / "berth" / "libberth_injob.so").unlink()


def open_library(prefix: Path) -> None:
    (prefix / "lib" / "berth" / "libberth_injob.so").chmod(0o777)


def close_folder(prefix: Path) -> None:
    (prefix / "lib").chmod(0o700)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (break_library, "No such file or directory; make -C prolog_epilog/injob/c install on this node"),
        (open_library, "all users may write"),
        (close_folder, "users cannot read"),
    ],
)
def test_what_would_fail_in_each_program_is_left_out_with_a_sentence(
    world: World, prefix: Path, harm: object, says: str
) -> None:
    assert callable(harm)
    harm(prefix)
    prepend, said = prolog(world, "opportunistic")
    assert list(prepend) == ["PYTHONPATH"]
    assert "job 7 gets nothing into LD_PRELOAD: " in said
    assert says in said


def findings(prefix: Path, choice: str = "all") -> dict[str, tuple[bool, str]]:
    settings = NodeConfig(inject=choice, inject_from=str(prefix))
    return {one.name: (one.ok, one.text) for one in doctor.injected(settings)}


def test_the_doctor_tries_both(prefix: Path) -> None:
    assert findings(prefix, "none") == {}
    assert list(findings(prefix, "hooks")) == ["PYTHONPATH"]
    assert [ok for ok, _ in findings(prefix).values()] == [True, True]

    library = prefix / "lib" / "berth" / "libberth_injob.so"
    library.write_text("no library")
    (prefix / "share" / "berth" / "prolog_epilog" / "injob" / "law.py").unlink()
    found = findings(prefix)
    assert [ok for ok, _ in found.values()] == [False, False]
    assert "cannot be preloaded" in found["LD_PRELOAD"][1]
    assert "No module named 'prolog_epilog.injob.law'" in found["PYTHONPATH"][1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("inject = 'always'", "inject is one of none, library, hooks, all, retry, managed, not 'always'"),
        ("inject = true", "inject is a text in quotes"),
        ("inject_from = 'usr'", "inject_from is a path from / on"),
        ("inject_from = '/a b'", "a path without blanks and colons"),
        ("inject_from = '/a:b'", "a path without blanks and colons"),
        ("inject_from = ''", "a path without blanks and colons"),
        ("injekt = 'all'", "did you mean inject?"),
    ],
)
def test_a_wrong_wish_is_told(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "berth.conf").write_text(f"[node]\n{line}\n")
    with pytest.raises(NodeConfigError, match=r".") as caught:
        config.load(str(tmp_path / "berth.conf"))
    assert says in str(caught.value)


PROGRAM = """
import json, os, sys, berth_injob
heard = berth_injob.ready()
for _ in range(5): berth_injob.step(0.01)
job = berth_injob._injob.job()
loaded = any("libberth_injob" in line for line in open("/proc/self/maps"))
print(json.dumps([heard, job.duty(), loaded, job.gated_elsewhere, berth_injob.why()]))
"""

# A root of its own, in which nothing of this checkout or of the node's /run is to be seen but what is bound.
BOX = """
set -e
box=$1 repository=$2; shift 2
mkdir "$box"
mount --bind / "$box"
mount --bind /proc "$box/proc"
mount --bind /dev "$box/dev"
mount -t tmpfs none "$box$repository"
mount -t tmpfs none "$box/run"
while [ "$1" != -- ]; do
    mkdir -p "$box${1#*:}"
    mount --bind "${1%%:*}" "$box${1#*:}"
    shift
done
shift
exec chroot --userspec=65534:65534 "$box" "$@"
"""


def in_box(folder: Path, binds: dict[Path, str], prefix: str, page: str) -> subprocess.CompletedProcess[str]:
    """Run the program as another user in a container that has these folders at these places."""
    python = "/usr/bin/python3"
    version = subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"], check=False)
    if os.geteuid() != 0 or version.returncode:
        pytest.skip("needs root, and a Python that all users can start")
    words = [f"{source}:{target}" for source, target in binds.items()]
    environment = {
        "BERTH_WORD": page,
        "PYTHONPATH": f"{prefix}/share/berth/injob",
        "LD_PRELOAD": f"{prefix}/lib/berth/libberth_injob.so",
    }
    given = [f"{name}={value}" for name, value in environment.items()]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BOX, "box", str(folder / "box"), str(ROOT)]
    command += [*words, "--", "env", *given, python, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare: unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip("this machine lets nobody mount")
    return done


@needs_root
@pytest.mark.parametrize("library", [True, False])
def test_in_a_container_with_the_documented_binds_all_works(prefix: Path, *, library: bool) -> None:
    folder = prefix.parent
    words = folder / "words"
    (page,) = word.create(words / "42", ["GPU-a"], 65534, 65534)
    OrderPage(page).give(700, lease_s=600)
    binds = {words / "42": "/run/berth/words/42", prefix / "share" / "berth": "/run/usr/share/berth"}
    if library:
        binds[prefix / "lib" / "berth"] = "/run/usr/lib/berth"

    done = in_box(folder, binds, "/run/usr", "/run/berth/words/42/GPU-a")

    # A library that is not bound is the linker's to complain of, and the hooks' to stand in for.
    assert ("cannot be preloaded" in done.stderr) is not library
    assert json.loads(done.stdout) == [True, 700, library, library, ""]
    # The process is over, and its beats are still on the page that the node sees.
    assert word.beat_path(page).read_bytes()[256 + 24] == 5
    assert read_beats(page) == ()


def test_in_a_container_without_the_pages_a_program_runs_and_is_told_what_to_bind(prefix: Path) -> None:
    binds = {prefix: "/run/usr"}

    done = in_box(prefix.parent, binds, "/run/usr", "/run/berth/words/42/GPU-a")

    heard, duty, _, _, why = json.loads(done.stdout)
    assert (heard, duty) == (False, 1000)
    assert "in a container, bind /run/berth/words/42 into it" in why


def test_the_hooks_are_whole_without_the_rest_of_berth(prefix: Path, tmp_path: Path) -> None:
    (page,) = word.create(tmp_path / "42", ["GPU-a"], os.getuid(), os.getgid())
    code = (
        "import sys, berth_injob, prolog_epilog.injob.torch_hooks as hooks\nprint(berth_injob.ready(), hooks.__file__)"
    )
    environment = {"BERTH_WORD": str(page), "PYTHONPATH": f"{prefix}/share/berth/injob"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    heard, file = done.stdout.split()
    assert heard == "True"
    assert Path(file).is_relative_to(prefix)
    assert (prefix / "include" / "berth_injob.h").is_file()
    assert inject.lack(inject.HOOKS, f"{prefix}/share/berth/injob") == ""
