# SPDX-License-Identifier: Apache-2.0
"""Packages of NVIDIA's driver, Prometheus, munge, sackd and two shells, unpacked below build/ and not installed.

An apt of its own, which touches nothing of the machine's, fetches them. They are Debian's; NVIDIA's drivers 535 and 550
are of its section non-free, 580 and 595 of Ubuntu's section restricted. Where a section cannot be reached the tests
that need it are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "real-driver"
DEBIANS = {"r535": "bookworm", "r550": "trixie"}
"""The suite of Debian that has each driver."""
UBUNTUS = {"r580": "580", "r595": "595"}
"""The ending of the packages' names in Ubuntu."""
DRIVERS = (*DEBIANS, *UBUNTUS)
UBUNTU = "http://archive.ubuntu.com/ubuntu"
PROMETHEUS, MUNGE, ZSH, FISH = "prometheus", "munge", "zsh", "fish"
SACKDS = {"24.11": "sackd-24.11", "26.05": "sackd-26.05"}
PACKAGES = ("nvidia-cuda-mps", "libcuda1", "libnvidia-ml1")
UBUNTU_PACKAGES = ("nvidia-compute-utils", "libnvidia-compute")
UBUNTU_KEYS = "ubuntu-keyring"
"""Debian's package with Ubuntu's keys."""
OTHERS = {
    UBUNTU_KEYS: (UBUNTU_KEYS,),
    PROMETHEUS: ("prometheus",),
    MUNGE: ("munge", "libmunge2"),
    ZSH: ("zsh",),
    FISH: ("fish", "libpcre2-32-0"),
    **dict.fromkeys(SACKDS.values(), ("sackd",)),
}
NEWER = {UBUNTU_KEYS: "trixie", SACKDS["24.11"]: "trixie", SACKDS["26.05"]: "forky"}
"""Packages that bookworm does not have."""
KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"
UBUNTU_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"


@cache
def unpacked(driver: str) -> Path | str:
    """The folder with the files of this driver or program, or why there is none."""
    BUILD.mkdir(parents=True, exist_ok=True)
    # Several processes of one run of the tests may want it at once.
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _unpack(driver, BUILD / driver)


def program(name: str, path: str) -> list[str] | str:
    """The words that start a program of one of these packages with its own libraries, or why there is none."""
    folder = unpacked(name)
    if isinstance(folder, str):
        return folder
    libraries = ":".join(str(found) for found in folder.glob("usr/lib/*-linux-gnu*"))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(folder / path)]


def _unpack(name: str, folder: Path) -> Path | str:
    if (folder / "usr").is_dir():
        return folder
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "this machine has no apt-get"
    lines: list[str] | str
    if name in UBUNTUS:
        lines, packages = _ubuntu(), tuple(f"{part}-{UBUNTUS[name]}" for part in UBUNTU_PACKAGES)
    else:
        packages = OTHERS.get(name, PACKAGES)
        lines = _debian(f"{DEBIANS[name]} non-free" if name in DEBIANS else f"{NEWER.get(name, 'bookworm')} main")
    if isinstance(lines, str):
        return lines
    work = BUILD / f"{name}.apt"
    shutil.rmtree(work, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (work / part).mkdir(parents=True)
    why = _fetch(work, lines, packages)
    if why:
        return why
    for package in (work / "debs").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
    if name in UBUNTUS:
        _drop_large_files(work / "root")
    (work / "root").rename(folder)
    shutil.rmtree(work)
    return folder


def _fetch(work: Path, lines: list[str], packages: tuple[str, ...]) -> str:
    """Downloads the packages into `work`/debs; returns why not, empty if all went well."""
    with tempfile.TemporaryDirectory(prefix="berth-keys-") as keys:
        (work / "sources.list").write_text("".join(f"{_with_its_key_in(Path(keys), line)}\n" for line in lines))
        return _fetch_from(work, packages)


def _with_its_key_in(folder: Path, line: str) -> str:
    """Returns a line of apt's with its keyring in another folder: apt takes no path with a space for that."""
    found = re.search(r"(?<=signed-by=)[^\]]+", line)
    return line if found is None else line.replace(found[0], str(shutil.copy(found[0], folder)))


def _fetch_from(work: Path, packages: tuple[str, ...]) -> str:
    apt = [
        "apt-get",
        *("-o", f"Dir::Etc::SourceList={work / 'sources.list'}", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'cache'}"),
        *("-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Check-Valid-Until=false"),
    ]
    for words in ("update", "--error-on=any"), ("download", *packages):
        done = subprocess.run(
            [*apt, "-q", *words], cwd=work / "debs", capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            return f"apt-get {words[0]} failed: {(done.stderr.strip() or 'no word why').splitlines()[-1]}"
    return ""


def _debian(suite: str) -> list[str] | str:
    """Returns the source of this suite and section of Debian, or why there is none."""
    if not Path("/", KEYRING).exists():
        return "this machine has no keyring of Debian's"
    mirror = _mirror("Debian")
    return [f"deb [signed-by=/{KEYRING}] {mirror} {suite}"] if mirror else "apt's sources name no mirror of Debian's"


def _ubuntu() -> list[str] | str:
    """Returns the sources of Ubuntu 24.04's drivers, or why there are none."""
    keyring = Path("/", UBUNTU_KEYRING)
    if not keyring.exists():
        found = _unpack(UBUNTU_KEYS, BUILD / UBUNTU_KEYS)
        if isinstance(found, str):
            return found
        keyring = found / UBUNTU_KEYRING
    archive = _mirror("Ubuntu") or UBUNTU
    return [f"deb [signed-by={keyring}] {archive} noble-{part} restricted" for part in ("updates", "security")]


def _drop_large_files(root: Path) -> None:
    """Keeps two of the libraries: the others take a gigabyte."""
    for path in root.glob("usr/lib/*/*.so*"):
        if not path.name.startswith(("libcuda.so", "libnvidia-ml.so")):
            path.unlink()


def _mirror(origin: str) -> str:
    """Read the address that this machine's apt uses for a distribution itself; empty where it has none."""
    words = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = re.search(rf"^{origin}\|{origin}\|(\S+)$", shown, re.MULTILINE)
    return found[1] if found else ""
