# SPDX-License-Identifier: Apache-2.0
"""What docs/user/quickstart.md tells a reader to type, run block by block in a fresh Debian container.

The blocks are taken from the page, so that page and test cannot differ. The container has nothing but Debian's minimal
system, the checkout, and the socket of this machine's Docker engine for the part that needs one.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import PREFIX
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "user" / "quickstart.md").read_text()
README = (ROOT / "README.md").read_text()
NAME = f"{PREFIX}-reader"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")

pytestmark = [pytest.mark.hard, pytest.mark.timeout(1800)]


def blocks(section: str) -> list[str]:
    """The shell blocks below a heading of the page."""
    [body] = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found: list[str] = re.findall(r"^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    assert found, section
    return found


class Reader:
    """A fresh container in which somebody types what the page says."""

    def __init__(self) -> None:
        words = ["docker", "run", "--detach", "--rm", "--init", "--network", "host", "--name", NAME]
        words += ["--env", f"BERTH_CLUSTER_PREFIX={NAME}", "--env", "PIP_ROOT_USER_ACTION=ignore"]
        for name in SETTINGS:
            words += ["--env", name] if name in os.environ else []
        if CERTIFICATES.exists():
            # A site may have a certificate authority of its own.
            words += ["--volume", f"{CERTIFICATES}:/site-ca.crt:ro", "--env", "PIP_CERT=/site-ca.crt"]
        subprocess.run([ROOT / "containers" / "base-image", "trixie"], check=True)
        subprocess.run([*words, *self.engine(), "debian:trixie-slim", "sleep", "infinity"], check=True)
        files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        listed = subprocess.run(files, cwd=ROOT, check=True, capture_output=True).stdout
        there = b"\0".join(name for name in listed.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
        pack = ["tar", "--create", "--null", "--files-from", "-", "--transform", "s,^,berth/,SH"]
        packed = subprocess.run(pack, cwd=ROOT, input=there, check=True, capture_output=True).stdout
        subprocess.run(["docker", "cp", "-", f"{NAME}:/root"], input=packed, check=True)

    @staticmethod
    def engine() -> list[str]:
        """The way to this machine's engine, as a reader with Docker has it."""
        socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        return ["--volume", f"{socket}:/var/run/docker.sock"]

    def types(self, block: str, *, fails: bool = False, shown: bool = True) -> str:
        """Runs a block and returns all that it printed."""
        began = time.monotonic()
        # As an argument, not as input: commands in the block read what is typed, too.
        command = ["docker", "exec", "--workdir", "/root/berth", NAME, "bash", "-ec", block]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if shown:
            print(f"--- {time.monotonic() - began:.0f} s\n{block}{done.stdout}")
        assert (done.returncode != 0) == fails, f"{block}\n{done.stdout}"
        return done.stdout

    def gone(self) -> None:
        """Removes the container, and a cluster that it left."""
        for step in (["python3", str(ROOT / "containers" / "cluster.py"), "down"], ["docker", "rm", "--force", NAME]):
            subprocess.run(step, check=False, env={**os.environ, "BERTH_CLUSTER_PREFIX": NAME}, capture_output=True)
        for image in (f"{NAME}-cluster:24.11",):
            subprocess.run(["docker", "rmi", image], check=False, capture_output=True)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    somebody = Reader()
    try:
        yield somebody
    finally:
        somebody.gone()


def test_a_laptop_without_slurm(reader: Reader) -> None:
    *first, topology, jobs = blocks("On a laptop, without Slurm")
    for block in first:
        reader.types(block)
    assert "NV2" in reader.types(topology)
    table = reader.types(jobs)
    assert {"slurm", "berth"} <= set(table.split())


def test_without_slurm_the_observer_says_what_it_needs(reader: Reader) -> None:
    [block] = blocks("On your cluster, without changing it")
    said = reader.types(block, fails=True)
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said
    assert "squeue" in said or "scontrol" in said or "Slurm" in said


def test_the_page_of_a_day_needs_no_docker(reader: Reader) -> None:
    assert reader.types("command -v docker || echo none\n").strip() == "none"
    began = time.monotonic()
    reader.types("nohup make demo-web > demo-web.log 2>&1 &\n")
    log = "cat demo-web.log\n"
    address = until("an address", lambda: re.search(r"http://\S+", reader.types(log, shown=False)), 900.0, 1.0)
    read = "import sys, urllib.request; print(len(urllib.request.urlopen(sys.argv[1]).read()))"
    assert int(reader.types(f"python3 -c '{read}' {address[0]}\n")) > 1_000
    assert int(reader.types(f"python3 -c '{read}' {address[0]}api/room\n")) > 1_000
    print(f"demo-web: {time.monotonic() - began:.0f} s")


def test_a_cluster_with_a_real_slurm(reader: Reader) -> None:
    began = time.monotonic()
    setup, submit, ask, look, plan, down = blocks("On a test cluster with a real Slurm")
    reader.types(setup)
    [expected] = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    # docker hands the two streams on as they come.
    assert sorted(reader.types(submit).splitlines()) == sorted(expected.splitlines())
    print(f"a planned job after {time.monotonic() - began:.0f} s")
    assert "n2 GPUs 0,1" in reader.types(ask)
    assert "alice" in reader.types(look)
    assert "GPUs" in reader.types(plan)
    [[command, answer]] = re.findall(r"^    \$ (sbatch .*)\n    (sbatch: .*)\n", README, re.MULTILINE)
    script = f"cd; printf '#!/bin/sh\\nsleep 9\\n' > train.sh; {command}"
    said = reader.types(f'python3 containers/cluster.py exec --user alice ctl -- bash -c "{script}"\n')
    assert answer in said.splitlines()
    reader.types(down)
    assert reader.types("docker ps --quiet --filter name=" + NAME + "2411\n").strip() == ""
