#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the images of the test cluster: `images.py 24.11 berth`.

Steps that really run are shown as they come; the whole log is kept under build/.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build"

# As in cluster.py.
IMAGES = os.environ.get("BERTH_CLUSTER_IMAGES") or os.environ.get("BERTH_CLUSTER_PREFIX") or "berth"
# The Debian suite whose packages carry each supported Slurm.
SUITES = {"24.11": "trixie", "26.05": "forky"}
# Target in the Dockerfile -> end of the image's tag.
TARGETS = {"berth": "", "plain": "-plain", "accounting": "-accounting"}
# A step's first line, as the legacy builder and as BuildKit write it.
STEP = re.compile(r"(Step \d+/\d+ : (?:RUN|COPY)|#\d+ \[.*\d+/\d+\] (?:RUN|COPY))")


def say(text: str) -> None:
    """Show progress at once, even through a pipe."""
    print(f"cluster: {text}", flush=True)


def offer_ca_bundle() -> None:
    """Lay this machine's certificate authorities beside the build, for sites that have one of their own."""
    inputs = BUILD / "docker-inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    target = inputs / "ca-bundle.pem"
    named = [os.environ.get(name) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")]
    for candidate in [*named, "/etc/ssl/certs/ca-certificates.crt"]:
        if candidate and Path(candidate).is_file():
            target.write_bytes(Path(candidate).read_bytes())
            return
    target.unlink(missing_ok=True)


def build_arguments(slurm: str) -> list[str]:
    """The words that tell `docker build` about this Slurm and this machine's way to the network."""
    words = ["--build-arg", f"BASE=debian:{SUITES[slurm]}-slim", "--build-arg", f"SLURM={slurm}"]
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "http_proxy", "https_proxy", "no_proxy"):
        if os.environ.get(name):
            words += ["--build-arg", name]
    return words


class StepPrinter:
    """Prints each build step that is not taken from the cache, which only the line after it tells."""

    def __init__(self) -> None:
        self._step = ""

    def feed(self, line: str) -> None:
        """Take the next line of the builder's output."""
        if STEP.match(line):
            self._step = line.strip()
        elif self._step and line.strip():
            if "Using cache" not in line and not line.rstrip().endswith("CACHED"):
                print(f"  {self._step[:110]}", flush=True)
            self._step = ""


def build_image(slurm: str, target: str) -> int:
    """Build one target of the Dockerfile; the builder's exit status."""
    tag = f"{IMAGES}-cluster:{slurm}{TARGETS[target]}"
    # The host's network: a proxy or an index may be reachable from this machine's own addresses only.
    command = [
        "docker",
        "build",
        "--force-rm",
        "--network",
        "host",
        "--file",
        str(HERE / "Dockerfile"),
        "--target",
        target,
    ]
    command += ["--tag", tag, *build_arguments(slurm), str(ROOT)]
    output: list[str] = []
    printer = StepPrinter()
    say(f"building {tag} ...")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            printer.feed(line)
            output.append(line)
    log = BUILD / f"docker-build-{slurm}-{target}.log"
    log.write_text("".join(output))
    if process.returncode == 0 and target == "berth":
        keep_headers(slurm, tag)
    if process.returncode != 0:
        sys.stderr.write("".join(output[-25:]))
        print(f"cluster: building {tag} failed; the whole log is {log}", file=sys.stderr)
    return process.returncode


def keep_headers(slurm: str, tag: str) -> None:
    """Lay this Slurm's headers under build/headers, where `make lint` finds them."""
    folder = BUILD / "headers" / slurm
    if folder.exists():
        return
    folder.mkdir(parents=True)
    name = subprocess.run(["docker", "create", tag], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["docker", "cp", f"{name}:/usr/include/slurm", str(folder)], capture_output=True, check=False)
    subprocess.run(["docker", "rm", name], capture_output=True, check=False)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for another build of this checkout: both write the same inputs, logs and headers."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(slurm: str, targets: list[str]) -> int:
    """Bring the images of one Slurm up to date; 0 if all is well."""
    status = subprocess.run([str(HERE / "base-image"), SUITES[slurm]], check=False).returncode
    if status == 0:
        offer_ca_bundle()
    for target in targets:
        status = status or build_image(slurm, target)
    return status


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description="Builds the images of the test cluster.")
    parser.add_argument("slurm", choices=sorted(SUITES))
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS))
    arguments = parser.parse_args()
    started = time.monotonic()
    with one_at_a_time():
        status = build(arguments.slurm, arguments.targets)
    if status == 0:
        say(f"images are up to date ({time.monotonic() - started:.1f} s)")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
