# SPDX-License-Identifier: Apache-2.0
"""The plugins on a release of Slurm that no test knows: built with a warning, and idle where a function is gone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from policy.slurm.releases import NEWEST
from tests import building
from tests.unit.plugin_whole import FAKE, HEADERS, NO_HEADERS, each_slurm, release, sources_of

newest_slurm = pytest.mark.parametrize(
    "headers",
    [
        pytest.param(
            path,
            marks=[pytest.mark.headers, pytest.mark.skipif(release(path) < NEWEST, reason="an older Slurm's headers")],
        )
        for path in HEADERS[-1:]
    ]
    or [pytest.param(None, marks=[pytest.mark.headers, pytest.mark.skip(NO_HEADERS)])],
    ids=["newest"],
)
PLUGINS = ("job_submit_berth", "cli_filter_berth", "spank_berth")
LOADED = """
import ctypes, sys
plugin = ctypes.CDLL(sys.argv[1], mode={mode})
said = ctypes.c_char_p()
print(plugin.init(), plugin.job_submit(None, 1000, ctypes.byref(said)), plugin.job_modify(None, None, 1000, None))
print(plugin.fini(), said.value)
"""


@pytest.fixture
def later(headers: Path, tmp_path: Path) -> Path:
    """These headers, as a release would bring them that comes after all that are known."""
    folder = tmp_path / "include"
    shutil.copytree(headers, folder)
    path = folder / "slurm" / "slurm_version.h"
    text, count = re.subn(r"(#define\s+SLURM_VERSION_NUMBER).*", r"\1 SLURM_VERSION_NUM(27,5,0)", path.read_text())
    assert count == 1
    path.write_text(text)
    return folder


def build(include: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """`make` of the plugins alone."""
    targets = [str(folder / f"{name}.so") for name in PLUGINS]
    words = ["make", "-C", str(building.PLUGINS), f"builddir={folder}", f"SLURM_CFLAGS=-I{include}", *targets]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def undefined(library: Path) -> dict[str, str]:
    """What the loader has to find, and nm's letter for it: U, or w for what may be missing."""
    said = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True)
    return {name.partition("@")[0]: kind for kind, name in (line.split()[-2:] for line in said.stdout.splitlines())}


@newest_slurm
@pytest.mark.slow
def test_a_later_release_costs_a_warning_and_no_symbol_of_slurms_is_a_must(later: Path, tmp_path: Path) -> None:
    done = build(later, tmp_path / "build")

    assert done.returncode == 0, done.stderr
    warnings = re.findall(r"warning: #warning (.*)", done.stderr)
    assert len(warnings) == 1
    assert "this one is newer: run berth doctor release" in warnings[0]
    for name in PLUGINS:
        found = undefined(tmp_path / "build" / f"{name}.so")
        of_slurm = {symbol for symbol in found if symbol.startswith(("slurm_", "spank_"))}
        assert {symbol for symbol in of_slurm if found[symbol] == "U"} == set()
        source = (building.PLUGINS / name.rpartition("_")[0] / f"{name}.c").read_text()
        assert set(re.findall(r"NEEDED\((\w+)\)", source)) == of_slurm, name


@each_slurm
@pytest.mark.slow
def test_a_tested_release_is_built_without_a_word(headers: Path, tmp_path: Path) -> None:
    done = build(headers, tmp_path / "build")

    assert (done.returncode, "warning" in done.stderr) == (0, release(headers) > NEWEST)


@each_slurm
@pytest.mark.parametrize("missing", ["slurm_xrecalloc", "slurm_conf", "slurm_error"])
def test_without_a_function_the_plugin_says_so_once_and_leaves_all_to_slurm(
    headers: Path, tmp_path: Path, missing: str
) -> None:
    fake = tmp_path / "slurmctld.c"
    fake.write_text(FAKE.read_text())
    # The linker drops what a library has under this name.
    names = [building.PLUGINS / name for key in ("JOB_SUBMIT_SRCS", "PURE") for name in sources_of(key)]
    plugin = building.built(
        "plugin-alone.so", names, (building.PLUGINS, headers), ("-fPIC", "-shared", "-pthread", "-Wl,-z,now")
    )
    stands_in = building.built(
        f"slurmctld-without-{missing}.so",
        [fake],
        (building.PLUGINS, headers),
        ("-fPIC", "-shared", f"-D{missing}={missing}_of_old", "-Wl,-z,lazy"),
    )
    environment = {**os.environ, "LD_PRELOAD": str(stands_in), "BERTH_CONF": "/nowhere"}
    script = LOADED.format(mode=os.RTLD_NOW)

    done = subprocess.run(
        [sys.executable, "-c", script, str(plugin)], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout == "0 0 0\n0 None\n", done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"berth: this Slurm has no {missing}, which Berth needs, so its plugin does nothing; ")
