"""Debian's packages of NVIDIA's driver, Prometheus, munge and two shells, unpacked below build/ and not installed.

An apt of its own, which touches nothing of the machine's, fetches them; NVIDIA's are of Debian's section non-free.
Where that section cannot be reached the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "real-driver"
SUITES = {"r535": "bookworm", "r550": "trixie"}
"""The suite that has each driver."""
PROMETHEUS, MUNGE, ZSH, FISH = "prometheus", "munge", "zsh", "fish"
PACKAGES = ("nvidia-cuda-mps", "libcuda1", "libnvidia-ml1")
OTHERS = {
    PROMETHEUS: ("prometheus",),
    MUNGE: ("munge", "libmunge2"),
    ZSH: ("zsh",),
    FISH: ("fish", "libpcre2-32-0"),
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


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


def _unpack(driver: str, folder: Path) -> Path | str:
    if (folder / "usr").is_dir():
        return folder
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and KEYRING.exists()):
        return "this machine has no apt-get or no keyring of Debian's"
    mirror = _mirror()
    if not mirror:
        return "apt's sources name no mirror of Debian's"
    other = OTHERS.get(driver)
    suite, packages = ("bookworm main", other) if other else (f"{SUITES[driver]} non-free", PACKAGES)
    work = BUILD / f"{driver}.apt"
    shutil.rmtree(work, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (work / name).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite}\n")
    apt = [
        "apt-get",
        *("-o", f"Dir::Etc::SourceList={work / 'sources.list'}", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'cache'}"),
        *("-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Check-Valid-Until=false"),
    ]
    for words in ("update",), ("download", *packages):
        done = subprocess.run(
            [*apt, "-q", *words], cwd=work / "debs", capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            return f"apt-get {words[0]} failed: {(done.stderr.strip() or 'no word why').splitlines()[-1]}"
    for package in (work / "debs").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
    (work / "root").rename(folder)
    shutil.rmtree(work)
    return folder


def _mirror() -> str:
    """Read the address that this machine's apt uses for Debian itself; empty where it has none."""
    words = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^Debian\|Debian\|(\S+)$", shown, re.MULTILINE)
    return found[1] if found else ""
