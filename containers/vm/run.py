#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries Berth on a fresh Debian with systemd and cgroup v2, in a virtual machine: `run.py trixie`.

The trial `cluster` brings the test cluster up in Docker there. The trial `units` runs Berth's packages under systemd
beside Debian's own Slurm: berthd and berth-guard by their units.

The machine's disk is made from Debian's packages and by containers/bootstrap; the images of the cluster are taken along
from this machine, so that nothing is built where the processor may be emulated. The guest needs no network. What it
finds is printed and kept in build/vm/SUITE/results.json, its console in console.log beside it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from containers.cluster import PREFIX, VERSIONS, Cluster, ClusterError, docker, require_engine  # noqa: E402

BUILD = ROOT / "build" / "vm"
MARK = "VM-RESULT "
# What the guest needs of the repository; the rest is in the images.
PARTS = ("containers", "tests", "topology")
SCRIPTS = {"cluster": "guest", "units": "units"}
OLD_CGROUPS = ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
RIGHTS = ("AUDIT_WRITE", "DAC_READ_SEARCH", "IPC_LOCK", "MKNOD", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE")
PACKAGES = ROOT / "dist" / "deb-debian13"
DISK_SIZE = "12G"


def say(text: str) -> None:
    """Show progress at once, even through a pipe."""
    print(f"vm: {text}", flush=True)


def require_tools(*, container: bool) -> None:
    """Say what to do when something is missing."""
    if os.geteuid() != 0:
        raise ClusterError("the machine's disk gets files of root: run this as root")
    missing = [] if container else [tool for tool in ("qemu-system-x86_64", "mke2fs") if shutil.which(tool) is None]
    if missing:
        raise ClusterError(f"{' and '.join(missing)} not found: run 'containers/bootstrap vm-packages' as root")
    require_engine()


def make_packages() -> None:
    """Build Berth's packages beside Debian's Slurm; BERTH_PACKAGES_BUILT=1 takes those that lie in dist/ already."""
    if not (os.environ.get("BERTH_PACKAGES_BUILT") and PACKAGES.is_dir()):
        subprocess.run([sys.executable, ROOT / "packaging" / "build.py", "deb", "--in", "trixie"], check=True)


def without_leftovers(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what Python, compilers and fuzzers wrote."""
    return None if info.name.endswith(("__pycache__", "/build", "/corpus")) else info


def make_image(suite: str, trial: str) -> str:
    """Build the machine as a Docker image, because that caches what has not changed; its id."""
    subprocess.run([ROOT / "containers" / "base-image", suite], check=True)
    if trial == "cluster":
        return build(suite, "Dockerfile", f"SUITE={suite}", trial, ("containers/bootstrap",))
    machine = build(suite, "Dockerfile", f"SUITE={suite}", "machine", ())
    packages = {f"packages/{path.name}": path for path in PACKAGES.glob("*.deb")}
    return build(suite, "units.Dockerfile", f"MACHINE={machine}", trial, ("tests/__init__.py", "tests/fakes"), packages)


def build(
    suite: str,
    dockerfile: str,
    argument: str,
    target: str,
    copied: Sequence[str],
    more: Mapping[str, Path] | None = None,
) -> str:
    """Build one image from the files that its Dockerfile copies, and return its id."""
    context = io.BytesIO()
    # docker tells an archive from a Dockerfile by its first 512 bytes; Python's default format needs more.
    with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in (f"containers/vm/{dockerfile}", "containers/vm/berth-guest.service", *copied):
            archive.add(ROOT / name, name, filter=without_leftovers)
        for name, path in (more or {}).items():
            archive.add(path, name)
    tag = f"{PREFIX}-machine:{suite}-{target}"
    words = ["--file", f"containers/vm/{dockerfile}", "--build-arg", argument, "--tag", tag]
    words += ["--target", target] if dockerfile == "Dockerfile" else []
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        words += ["--build-arg", name] if os.environ.get(name) else []
    log = BUILD / f"docker-build-{suite}-{target}.log"
    with log.open("wb") as output:
        done = subprocess.run(
            ["docker", "build", "--force-rm", "--network", "host", *words, "-"],
            input=context.getvalue(),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"the machine for {suite} could not be built: see {log}")
    return docker("image", "inspect", "--format", "{{.Id}}", tag).strip()


def make_disk(folder: Path, image: str) -> None:
    """Write the image's files to a disk, and its kernel beside it; nothing to do where that has been done."""
    made_from = folder / "made-from"
    if made_from.exists() and made_from.read_text() == image:
        return
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    files.mkdir(parents=True)
    container = docker("create", image).strip()
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            subprocess.run(["tar", "-C", files, "-x"], stdin=export.stdout, check=True)
    finally:
        docker("rm", container)
    # Docker marks its containers with this file; systemd would take the machine for one.
    (files / ".dockerenv").unlink(missing_ok=True)
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(files / name, folder / name)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", files, folder / "system.ext4", DISK_SIZE], check=True)
    shutil.rmtree(files)
    made_from.write_text(image)


def take_along(folder: Path, cluster: Cluster | None) -> None:
    """Write the repository and the cluster's image as archives, which the guest reads as bare disks."""
    with tarfile.open(folder / "repository.tar", "w") as archive:
        for part in PARTS:
            archive.add(ROOT / part, part, filter=without_leftovers)
    if cluster is not None:
        docker("save", "--output", str(folder / "images.tar"), cluster.image)


def has_virtualization() -> bool:
    """Whether the processor itself can run a guest; /dev/kvm alone may be a kind that takes adapted kernels only."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    return bool({"vmx", "svm"} & words) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def machine_command(folder: Path, slurm: str, trial: str) -> list[str]:
    """The command line of the emulator."""
    fast = has_virtualization()
    say(
        "the processor's virtualization is used" if fast else "the processor is emulated: this takes about five minutes"
    )
    # QEMU 7.2 (Debian 12) emulates CMPXCHG16B with wrong flags, and the kernel dies of it; it can do without.
    settings = "" if fast else "clearcpuid=cx16 "
    settings += f"systemd.setenv=SLURM={slurm} systemd.setenv=BERTH_CLUSTER_PREFIX={PREFIX}"
    settings += f" systemd.setenv=BERTH_TRIAL={SCRIPTS[trial]}"
    settings += "" if fast else " systemd.setenv=BERTH_EMULATED=1"
    command = ["nice", "-n", "10", "qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", "stdio", "-smp", "2", "-m", "4096"]
    command += ["-accel", "kvm", "-cpu", "host"] if fast else ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    command += ["-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img")]
    command += ["-append", f"root=/dev/vda rw console=ttyS0 panic=-1 {settings}"]
    for name in ("system.ext4", "repository.tar", *(["images.tar"] if trial == "cluster" else [])):
        # A snapshot: what the guest writes is thrown away, and the disk stays as it was made.
        command += ["-drive", f"file={folder / name},format=raw,if=virtio,snapshot=on,cache=unsafe"]
    return command


def boot(folder: Path, slurm: str, trial: str, time_limit: float) -> dict[str, str]:
    """Run the machine until it powers itself off; what its guest told."""
    results: dict[str, str] = {}
    # The snapshots grow to several GB: not in a /tmp that lies in memory.
    environment = {**os.environ, "TMPDIR": str(folder)}
    started = time.monotonic()
    with (
        (folder / "console.log").open("w") as console,
        subprocess.Popen(
            machine_command(folder, slurm, trial),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as process,
    ):
        alarm = threading.Timer(time_limit, process.kill)
        alarm.start()
        try:
            for line in process.stdout or ():
                console.write(line)
                console.flush()
                if MARK in line:
                    key, _, value = line.partition(MARK)[2].strip().partition("=")
                    results[key] = value
                    say(f"{time.monotonic() - started:5.0f} s  {key} = {value}")
        finally:
            alarm.cancel()
            process.kill()
    results["whole_seconds"] = str(round(time.monotonic() - started))
    return results


def in_container(folder: Path) -> dict[str, str]:
    """Run the trial of the units in a container with systemd, as fast as this machine is; what it told."""
    name = f"{PREFIX}-units"
    docker("rm", "--force", name)
    # Control groups of version 1 are for systemd up to 257, and have to be asked for twice.
    old = [] if Path("/sys/fs/cgroup/cgroup.controllers").exists() else OLD_CGROUPS
    rights = [f"--cap-add={right}" for right in RIGHTS]
    docker(
        "run", "--detach", "--name", name, "--hostname", "vm", *rights, "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined", "--device-cgroup-rule=c *:* rwm", "--env=container=docker",
        "--tmpfs=/run:exec", "--tmpfs=/tmp:exec", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw",
        f"{PREFIX}-machine:trixie-units", "/sbin/init", *old, "systemd.mask=berth-guest.service",
    )  # fmt: skip
    try:
        with (folder / "repository.tar").open("rb") as archive:
            words = ["docker", "exec", "--interactive", name, "sh", "-c", "mkdir -p /srv/berth && tar -C /srv/berth -x"]
            subprocess.run(words, stdin=archive, check=True)
        words = ["docker", "exec", "--env=container=docker", name, "python3", "/srv/berth/containers/vm/units.py"]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    finally:
        docker("rm", "--force", name)
    (folder / "console.log").write_text(done.stdout + done.stderr)
    lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    return dict(line.split("=", 1) for line in lines)


def perform(suite: str, slurm: str, trial: str, time_limit: float, *, container: bool = False) -> int:
    """Make the machine, run it, keep what it told."""
    require_tools(container=container)
    BUILD.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(slurm, berth=True) if trial == "cluster" else None
    if cluster is None:
        make_packages()
    else:
        subprocess.run([sys.executable, ROOT / "containers" / "images.py", slurm, "berth"], check=True)
    say(f"making a {suite} machine ...")
    folder = BUILD / (suite if trial == "cluster" else f"{suite}-{trial}")
    image = make_image(suite, trial)
    if container:
        folder = folder.with_name(f"{folder.name}-container")
        folder.mkdir(exist_ok=True)
    else:
        make_disk(folder, image)
    take_along(folder, cluster)
    say(f"{'starting' if container else 'booting'} it; its console: {folder / 'console.log'}")
    results = in_container(folder) if container else boot(folder, slurm, trial, time_limit)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if results.get("end") != "reached":
        why = results.get("error", f"it told no end within {time_limit:.0f} s")
        raise ClusterError(f"the trial failed: {why}; the machine's console: {folder / 'console.log'}")
    return 0


def main() -> int:
    """Turn a failure into one sentence and an exit status."""
    parser = argparse.ArgumentParser(description="Tries Berth on a fresh Debian in a virtual machine.")
    parser.add_argument("suite", nargs="?", default="trixie", choices=["bookworm", "trixie"], help="default: trixie")
    parser.add_argument("--trial", default="cluster", choices=sorted(SCRIPTS), help="default: cluster")
    parser.add_argument("--container", action="store_true", help="the trial of the units without a virtual machine")
    parser.add_argument("--slurm", default="24.11", choices=VERSIONS, help="default: 24.11")
    parser.add_argument("--time-limit", type=float, default=2400, metavar="SECONDS", help="default: 2400")
    arguments = parser.parse_args()
    if arguments.container and arguments.trial != "units":
        parser.error("--container is for --trial units")
    try:
        words = arguments.suite, arguments.slurm, arguments.trial, arguments.time_limit
        return perform(*words, container=arguments.container)
    except (ClusterError, OSError, subprocess.CalledProcessError) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
