# SPDX-License-Identifier: Apache-2.0
"""Each role runs with the packages that its extra in pyproject.toml names, and with no other."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
OURS = ("policy", "prolog_epilog", "topology")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

LOGIN = (
    "policy.cli.main",
    "policy.cli.jobs.why",
    "policy.cli.jobs.plan",
    "policy.cli.status",
    "policy.cli.jobs.ready",
    "policy.cli.past.classify",
    "policy.cli.past.report",
    "policy.cli.jobs.job_gpus",
    "policy.cli.topo.show",
    "policy.slurm.by_command.command",
    "policy.slurm.by_command.records",
    "policy.slurm.boots",
    "policy.slurm.outcomes",
)
NODE = (
    "policy.cli.calibrate.node",
    "policy.cli.doctor.command",
    "policy.cli.topo.discover",
    "prolog_epilog.guard.program",
    "prolog_epilog.preflight.runner",
    "prolog_epilog.programs",
    "topology.providers.nvml",
)
SIMULATE = ("policy.simulate.command",)
DAEMON = (
    "policy.cli.main",
    "policy.cli.calibrate.run",
    "policy.cli.profile",
    "policy.daemon.answer.main",
    "policy.daemon.known.matcher",
    "policy.daemon.passes.planning",
    "policy.serve.main",
)
# What these reach with all that is imported late is part of the role; the others import late what only admins need.
WHOLE = {"simulate": SIMULATE, "daemon": DAEMON}


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


@cache
def distributions(extra: str) -> frozenset[str]:
    """The packages of an extra, with all that they need themselves."""
    found: set[str] = set()
    todo = list(EXTRAS[extra])
    while todo:
        requirement = todo.pop()
        if name_of(requirement) == PROJECT["name"]:
            inner = requirement[requirement.index("[") + 1 : requirement.index("]")]
            found.update(*(distributions(one) for one in inner.split(",")))
        elif name_of(requirement) not in found and "extra ==" not in requirement:
            found.add(name_of(requirement))
            todo += metadata.requires(name_of(requirement)) or []
    return frozenset(found)


def top_level(distribution: str) -> set[str]:
    return {Path(file).parts[0] for file in metadata.files(distribution) or () if not str(file).startswith("..")}


def lay_out(extra: str, folder: Path) -> Path:
    """Makes a folder with links to Berth's own packages and to those of a role."""
    for name in OURS:
        (folder / name).symlink_to(ROOT / name)
    for distribution in distributions(extra):
        for name in top_level(distribution):
            source = metadata.distribution(distribution).locate_file(name)
            (folder / name).symlink_to(str(source))
    return folder


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with this folder and the standard library, and nothing else."""
    command = [sys.executable, "-S", "-s", "-P", *words]
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("extra", [pytest.param(one, marks=pytest.mark.slow) for one in sorted(WHOLE)])
def test_all_that_a_role_can_reach_imports_with_its_packages_alone(
    tmp_path: Path, graph: grimp.ImportGraph, extra: str
) -> None:
    reached = set(WHOLE[extra]).union(*(graph.find_upstream_modules(one) for one in WHOLE[extra]))
    # pyslurm fits one release of Slurm only; berthd asks in a process of its own whether it is there.
    modules = sorted(one for one in reached if one.partition(".")[0] in OURS)

    done = run(lay_out(extra, tmp_path), "-c", "\n".join(f"import {one}" for one in modules))

    assert (done.returncode, done.stderr) == (0, "")
    external = {one for one in reached if one.partition(".")[0] not in OURS} - sys.stdlib_module_names
    # Plots are left out where the extra `report` is not installed.
    assert external - {"pyslurm", "matplotlib"} <= set().union(*map(top_level, distributions(extra)))


@pytest.mark.parametrize(("extra", "modules"), [("user", LOGIN), ("node", NODE)])
def test_entry_points_of_nodes_and_users_import_with_their_packages_alone(
    tmp_path: Path, extra: str, modules: tuple[str, ...]
) -> None:
    done = run(lay_out(extra, tmp_path), "-c", "\n".join(f"import {one}" for one in modules))

    assert (done.returncode, done.stderr) == (0, "")


def test_plots_are_an_extra_of_their_own() -> None:
    assert "matplotlib" in distributions("report")
    assert not any("matplotlib" in distributions(one) for one in ("user", "node", "simulate", "daemon"))


def test_users_need_no_package_and_nodes_nvidias_alone() -> None:
    assert distributions("user") == set()
    assert distributions("node") == {"nvidia-ml-py"}
    assert PROJECT["dependencies"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "COMMAND"),
        (["classify", "-", "--exit-code", "1"], "no_signature"),
        (["why", "7_3"], "is not known"),
        (["topo", "show", "machine:hgx-h100"], "NV18"),
        (["topo", "draw", "machine:hgx-h100"], "written"),
        (["report"], "sacct"),
        (["simulate", "--help"], "usage"),
    ],
)
def test_commands_of_users_run_without_any_package(tmp_path: Path, words: list[str], said: str) -> None:
    folder = lay_out("user", tmp_path)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\necho '{\"jobs\": []}'\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"

    done = run(folder, "-m", "policy.cli.main", *words, PATH=path)

    assert "this command needs" not in done.stderr
    assert said in done.stdout + done.stderr


def test_a_prolog_loads_no_keys_but_its_own() -> None:
    code = "import sys, prolog_epilog.prolog as _; print(sorted(one for one in sys.modules if one.endswith('keys')))"

    assert run(ROOT, "-c", code).stdout == "['prolog_epilog.settings.keys']\n"
