# SPDX-License-Identifier: Apache-2.0
"""A cluster in the middle of an upgrade of Berth: plugins, berthd and nodes are each of this revision or of another.

BERTH_BEFORE names the other revision; nothing is run without it. BERTH_MIXES=plugin,berthd+node chooses the mixes.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.harness import Slurm, seen
from tests.slurm.nodes import NAMES, let_go, waiting_body
from tests.slurm.target import Container
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BEFORE = os.environ.get("BERTH_BEFORE", "")
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
IMAGES = "berth-before"
"""The prefix of the other revision's images."""
PLUGINS = "/usr/lib/x86_64-linux-gnu/slurm-wlm"
PARTS = {
    "plugin": [f"{PLUGINS}/{one}_berth.so" for one in ("job_submit", "cli_filter", "spank")],
    "berthd": ["/opt/berth", "/usr/libexec/berth/berth-slurm"],
    "node": ["/opt/berth", "/usr/libexec/berth/berth-notice", f"{PLUGINS}/spank_berth.so", "/usr/lib/berth"],
}
"""The files of each part. One package brings each: the plugins', the controller's, the node's."""
MIXES = [mix for count in (1, 2) for mix in combinations(PARTS, count)]
"""The parts that are still of the other revision."""
if wanted := os.environ.get("BERTH_MIXES"):
    MIXES = [tuple(one.split("+")) for one in wanted.split(",")]
LAID: dict[tuple[str, str], str] = {}
"""By cluster and part: the image whose files are there, if it is not the cluster's own."""
FILES = ("best_set", "flags", "given", "guests", "later", "notice", "packed", "retry", "shares")
"""The tests of the other revision that have to pass as they did there, but for those that this revision changed."""

pytestmark = [
    pytest.mark.hard,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not BEFORE, reason="BERTH_BEFORE names no revision"),
]


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    """Lays out the other revision's files."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest, before: Path) -> Iterator[Slurm]:
    """Starts a cluster of this revision, and builds the other revision's image beside it."""
    version = str(request.param)
    one = Cluster(version, berth=True)
    environment = {**os.environ, "BERTH_CLUSTER_IMAGES": IMAGES}
    try:
        command = [sys.executable, str(before / "containers" / "images.py"), version, "berth"]
        subprocess.run(command, env=environment, check=True)
        cluster("up", "--slurm", version)
        yield Slurm(version, Container(f"{one.project}-ctl"))
    finally:
        cluster("down", "--slurm", version)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def image_of(name: str) -> Iterator[str]:
    """Makes a container that does not run, so that files can be copied out of its image."""
    made = docker("create", name)
    try:
        yield made
    finally:
        docker("rm", made)


def lay(slurm: Slurm, part: str, image: str) -> None:
    """Replaces the files of a part by those of an image, as a package does, and restarts the part's daemons."""
    project = slurm.target.name.removesuffix("-ctl")
    if LAID.get((project, part), Cluster(slurm.name, berth=True).image) == image:
        return
    LAID[project, part] = image
    hosts = [f"{project}-{node}" for node in NAMES] if part == "node" else [f"{project}-ctl"]
    with image_of(image) as source, tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(PARTS[part]):
            docker("cp", f"{source}:{path}", f"{folder}/{number}")
            for host in hosts:
                docker("cp", f"{folder}/{number}", f"{host}:{path}.new")
                # A program that runs keeps its old file.
                script = f"mv {path} {path}.old && mv {path}.new {path} && rm -rf {path}.old"
                docker("exec", host, "sh", "-ec", script)
    if part == "node":
        for host in hosts:
            docker("exec", host, "svc", "berth-guard", "restart")
    if part == "plugin":
        slurm.target.run(["svc", "slurmctld", "restart"], user="root")
        until("slurmctld", lambda: "UP" in slurm.target.run(["scontrol", "ping"], check=False).out)
    elif part == "berthd":
        slurm.target.run(["svc", "berthd", "restart"], user="root")
    until("berthd", lambda: slurm.target.run(["berth", "status"], user="root", check=False).rc == 0)
    idle = ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"]
    until("nodes that answer", lambda: not {"down", "unknown"} & {*slurm.target.run(idle).out.split()})


def changed(before: Path, file: str) -> list[str]:
    """Returns the tests of a file that this revision changed or took out: what they asserted was to change."""
    there, here = bodies(before / file), bodies(ROOT / file)
    return [f"{file}::{name}" for name, body in there.items() if here.get(name) != body]


def bodies(file: Path) -> dict[str, str]:
    """Returns the tests of a file by name, with their marks and their code."""
    functions = [one for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef)]
    return {one.name: ast.dump(one) for one in functions if one.name.startswith("test_")}


@pytest.mark.parametrize("mix", MIXES, ids="+".join)
def test_no_mix_of_parts_is_worse_than_the_revision_before(slurm: Slurm, before: Path, mix: tuple[str, ...]) -> None:
    new, old = Cluster(slurm.name, berth=True).image, f"{IMAGES}-cluster:{slurm.name}"
    slurm.clear()
    for part in PARTS:
        lay(slurm, part, old if part in mix else new)
    files = [f"tests/slurm/test_{name}.py" for name in FILES]
    left_out = [f"--deselect={test}" for file in files for test in changed(before, file)]
    print("left out, as this revision changed them:", *left_out)
    words = ["-q", "-p", "no:cacheprovider", "-m", "not hard", *left_out, *files]
    environment = {**os.environ, "BERTH_TEST_SLURM": slurm.target.name}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=before,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.parametrize("order", [("plugin", "berthd", "node"), ("node", "berthd", "plugin")], ids="-".join)
def test_jobs_outlive_an_upgrade_and_the_way_back(slurm: Slurm, order: tuple[str, ...]) -> None:
    """Jobs of each kind that run or wait while each part is replaced end as they would have."""
    new, old = Cluster(slurm.name, berth=True).image, f"{IMAGES}-cluster:{slurm.name}"
    # All parts may be replaced while they run, which takes minutes on a busy machine.
    runs = partial(slurm.submit, "-t60", body=waiting_body())
    slurm.clear()
    for part in PARTS:
        lay(slurm, part, old)
    for image in (new, old):
        owner = runs("--gpus=8", "-w", "n1", "--gpu-tier=guaranteed", "--gpu-mem=1G", user="bob")
        shares = [runs("--gpu-share=30", "--gpu-mem=1G", "-w", "n2", user="alice") for _ in range(2)]
        rest = [runs("--gpus=8", "-w", node, user="carol") for node in ("n3", "n4")]
        for job in (owner, *shares, *rest):
            slurm.wait_state(job, {"RUNNING"})
        guest = runs("--gpu-tier=opportunistic", "--gpus=1", user="dave")
        waits = [slurm.submit("--gpus=2", "-w", node, user="alice") for node in ("n1", "n2", "n3")]
        packed = slurm.submit("--gpu-share=50", "-w", "n4", user="alice")
        array = slurm.submit("--array=1-2", "--gpus=4", "-w", "n3", user="alice")

        for part in order:
            lay(slurm, part, image)

        for job in (owner, *shares, *rest, guest):
            let_go(slurm, job)
        for job in (owner, *shares, *rest, guest):
            slurm.finish(job)
        for job in waits:
            [probe] = seen(slurm.finish(job))
            assert len(probe.gpus) == 2
        # A share that Slurm gave no GPU of its own waits two minutes for its next start.
        [probe] = seen(slurm.finish(packed, 300))
        assert len(probe.gpus) == 1
        slurm.wait_state(array, {"COMPLETED"}, 120)
