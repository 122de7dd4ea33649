#!/usr/bin/env python3
"""Tries the test cluster on a fresh Debian with systemd and cgroup v2, in a virtual machine: `run.py trixie`.

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
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from containers.cluster import PREFIX, VERSIONS, Cluster, ClusterError, docker, require_engine  # noqa: E402

BUILD = ROOT / "build" / "vm"
MARK = "VM-RESULT "
# What the guest needs of the repository; the rest is in the images.
PARTS = ("containers", "tests", "topology")
DISK_SIZE = "12G"


def say(text: str) -> None:
    """Show progress at once, even through a pipe."""
    print(f"vm: {text}", flush=True)


def require_tools() -> None:
    """Say what to do when something is missing."""
    if os.geteuid() != 0:
        raise ClusterError("the machine's disk gets files of root: run this as root")
    missing = [tool for tool in ("qemu-system-x86_64", "mke2fs") if shutil.which(tool) is None]
    if missing:
        raise ClusterError(f"{' and '.join(missing)} not found: run 'containers/bootstrap vm-packages' as root")
    require_engine()


def make_image(suite: str) -> str:
    """Build the machine as a Docker image, because that caches what has not changed; its id."""
    subprocess.run([ROOT / "containers" / "base-image", suite], check=True)
    context = io.BytesIO()
    # docker tells an archive from a Dockerfile by its first 512 bytes; Python's default format needs more.
    with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("containers/bootstrap", "containers/vm/Dockerfile", "containers/vm/berth-guest.service"):
            archive.add(ROOT / name, name)
    tag = f"{PREFIX}-machine:{suite}"
    words = ["--file", "containers/vm/Dockerfile", "--build-arg", f"SUITE={suite}", "--tag", tag]
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        words += ["--build-arg", name] if os.environ.get(name) else []
    log = BUILD / f"docker-build-{suite}.log"
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


def take_along(folder: Path, cluster: Cluster) -> None:
    """Write the repository and the cluster's image as archives, which the guest reads as bare disks."""
    with tarfile.open(folder / "repository.tar", "w") as archive:
        for part in PARTS:
            archive.add(
                ROOT / part,
                part,
                filter=lambda info: None if info.name.endswith(("__pycache__", "/build", "/corpus")) else info,
            )
    docker("save", "--output", str(folder / "images.tar"), cluster.image)


def has_virtualization() -> bool:
    """Whether the processor itself can run a guest; /dev/kvm alone may be a kind that takes adapted kernels only."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    return bool({"vmx", "svm"} & words) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def machine_command(folder: Path, slurm: str) -> list[str]:
    """The command line of the emulator."""
    fast = has_virtualization()
    say(
        "the processor's virtualization is used" if fast else "the processor is emulated: this takes about five minutes"
    )
    # QEMU 7.2 (Debian 12) emulates CMPXCHG16B with wrong flags, and the kernel dies of it; it can do without.
    settings = "" if fast else "clearcpuid=cx16 "
    settings += f"systemd.setenv=SLURM={slurm} systemd.setenv=BERTH_CLUSTER_PREFIX={PREFIX}"
    command = ["nice", "-n", "19", "qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", "stdio", "-smp", "2", "-m", "4096"]
    command += ["-accel", "kvm", "-cpu", "host"] if fast else ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    command += ["-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img")]
    command += ["-append", f"root=/dev/vda rw console=ttyS0 panic=-1 {settings}"]
    for name in ("system.ext4", "repository.tar", "images.tar"):
        # A snapshot: what the guest writes is thrown away, and the disk stays as it was made.
        command += ["-drive", f"file={folder / name},format=raw,if=virtio,snapshot=on,cache=unsafe"]
    return command


def boot(folder: Path, slurm: str, time_limit: float) -> dict[str, str]:
    """Run the machine until it powers itself off; what its guest told."""
    results: dict[str, str] = {}
    # The snapshots grow to several GB: not in a /tmp that lies in memory.
    environment = {**os.environ, "TMPDIR": str(folder)}
    started = time.monotonic()
    with (
        (folder / "console.log").open("w") as console,
        subprocess.Popen(
            machine_command(folder, slurm),
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


def perform(suite: str, slurm: str, time_limit: float) -> int:
    """Make the machine, run it, keep what it told."""
    require_tools()
    BUILD.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(slurm, berth=True)
    subprocess.run([sys.executable, ROOT / "containers" / "images.py", slurm, "berth"], check=True)
    say(f"making a {suite} machine ...")
    folder = BUILD / suite
    make_disk(folder, make_image(suite))
    take_along(folder, cluster)
    say(f"booting it; its console: {folder / 'console.log'}")
    results = boot(folder, slurm, time_limit)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if results.get("end") != "reached":
        why = results.get("error", f"it told no end within {time_limit:.0f} s")
        raise ClusterError(f"the trial failed: {why}; the machine's console: {folder / 'console.log'}")
    return 0


def main() -> int:
    """Turn a failure into one sentence and an exit status."""
    parser = argparse.ArgumentParser(description="Tries the test cluster on a fresh Debian in a virtual machine.")
    parser.add_argument("suite", nargs="?", default="trixie", choices=["bookworm", "trixie"], help="default: trixie")
    parser.add_argument("--slurm", default="24.11", choices=VERSIONS, help="default: 24.11")
    parser.add_argument("--time-limit", type=float, default=2400, metavar="SECONDS", help="default: 2400")
    arguments = parser.parse_args()
    try:
        return perform(arguments.suite, arguments.slurm, arguments.time_limit)
    except (ClusterError, OSError, subprocess.CalledProcessError) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
