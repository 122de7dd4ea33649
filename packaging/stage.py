#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lays the files of each package below DEST/PACKAGE, for debian/rules and berth.spec alike.

usage: packaging/stage.py DEST [--python python3.11] [--plugins berth-slurm-plugins-24.11.5=[PREFIX]]...
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "packaging"
HOME = Path("opt/berth")
# The role of each command in [project.scripts]; the two shell scripts in front of Prolog and Epilog are the node's.
SCRIPTS = {
    "berth": "berth-common",
    "berthd": "berth-controller",
    "berth-prolog-python": "berth-node",
    "berth-epilog-python": "berth-node",
    "berth-guard": "berth-node",
}
FRONTS = ("berth-prolog", "berth-epilog")
# A package gets the locked requirements of its extra, less those of the packages that it depends on.
LOCKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "berth-node": ("node", ()),
    "berth-simulate": ("simulate", ()),
    "berth-controller": ("daemon", ("simulate", "node")),
    "berth-report": ("report", ("simulate",)),
}
# What compilers and type checkers read.
UNREAD = {".a", ".c", ".f", ".f90", ".h", ".hpp", ".pxd", ".pyi", ".pyx"}
MANUALS = {
    "berth.1": "berth-common",
    "berth.conf.5": "berth-common",
    "berthd.8": "berth-controller",
    "berth-guard.8": "berth-node",
    "berth-prolog.8": "berth-node",
}
# Where each shell looks for completions of a distribution's packages; zsh is told by the distribution.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/berth",
    "zsh": "usr/share/zsh/{zsh}/_berth",
    "fish": "usr/share/fish/vendor_completions.d/berth.fish",
}
PACKAGES = ("berth-common", "berth-controller", "berth-login", "berth-node", "berth-report", "berth-simulate")


def main() -> int:
    """Stages all packages; that of the plugins only where its name is given."""
    parser = argparse.ArgumentParser(description="Lays the files of each package below DEST/PACKAGE.")
    parser.add_argument("dest", type=Path)
    parser.add_argument("--python", default="python3", help="which Python of the target Berth runs with")
    parser.add_argument("--units", default="usr/lib/systemd/system", help="where systemd looks for units of packages")
    parser.add_argument("--rpm", action="store_true", help="folders as Enterprise Linux has them, not Debian")
    parser.add_argument("--plugins", action="append", default=[], metavar="PACKAGE=[PREFIX]", help="for this Slurm")
    options = parser.parse_args()
    # Whoever builds: a package's folders and files are for all to read.
    os.umask(0o022)
    stage = Stage(
        options.dest.resolve(),
        options.python,
        Path(options.units),
        "site-functions" if options.rpm else "vendor-completions",
    )
    for package in PACKAGES:
        stage.folder(package)
    stage.code()
    for package in LOCKS:
        stage.requirements(package)
    stage.files()
    stage.compile()
    # SLURM_PREFIX: where a Slurm lives that no package brought.
    for package, _, prefix in (one.partition("=") for one in options.plugins):
        words = [f"SLURM_CFLAGS=-I{prefix}/include"] if prefix else []
        if place := prefix or os.environ.get("SLURM_PREFIX"):
            words.append(f"prefix={place}")
        make("slurm_plugins", stage.folder(package), f"builddir={BUILD / package}", *words)
        stage.manual("berth-notice.8", package)
    return 0


class Stage:
    """The trees of all packages."""

    def __init__(self, dest: Path, python: str, units: Path, zsh: str) -> None:
        self._dest = dest
        self._python = shutil.which(python) or sys.exit(f"stage.py: no {python} in PATH; install it")
        told = run(self._python, "-c", "import sys; print(sys.version_info[0], sys.version_info[1], sep='.')")
        self._version = told.strip()
        self._units = units
        self._zsh = zsh
        self._tools = BUILD / f"venv-{self._version}"
        self._site = HOME / "lib" / f"python{self._version}" / "site-packages"

    def folder(self, package: str, below: str | Path = ".") -> Path:
        """Returns a folder of a package, which it makes."""
        folder = self._dest / package / below
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def code(self) -> None:
        """Lays down Berth's own wheel, and the environment around it: a Python of the system that looks below /opt."""
        if not (self._tools / "bin" / "pip").exists():
            run(self._python, "-m", "venv", str(self._tools))
        self._pip("--require-hashes", "-r", str(ROOT / "requirements" / "packaging.lock"))
        wheels = BUILD / f"wheel-{self._version}"
        shutil.rmtree(wheels, ignore_errors=True)
        run(str(self._tools / "bin" / "python"), "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels))
        site = self.folder("berth-common", self._site)
        # By its name, not its path, which pip would write down.
        found = ("--no-index", "--find-links", str(wheels), "slurm-berth")
        self._pip("--no-deps", "--no-compile", "--target", str(site), *found)
        for left in ("bin", "share"):
            shutil.rmtree(site / left, ignore_errors=True)
        # Not `python -m venv`: that would name this machine's Python, and bring pip.
        home = self.folder("berth-common", HOME)
        (home / "bin").mkdir(exist_ok=True)
        system = f"python{self._version}"
        (home / "pyvenv.cfg").write_text(
            f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {self._version}\n"
        )
        for name, target in (("python", f"/usr/bin/{system}"), ("python3", "python"), (system, "python")):
            (home / "bin" / name).symlink_to(target)
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        for name, package in SCRIPTS.items():
            module, _, function = scripts.pop(name).partition(":")
            text = launcher(f"/{HOME}/bin/python", module, function)
            write(self.folder(package, HOME / "bin") / name, text, 0o755)
        if scripts:
            sys.exit(f"stage.py: no package for {', '.join(scripts)}; add it to SCRIPTS")
        for name in FRONTS:
            front = (ROOT / "prolog_epilog" / "front" / name).read_text()
            write(self.folder("berth-node", HOME / "bin") / name, front, 0o755)
        self.folder("berth-common", "usr/bin").joinpath("berth").symlink_to(f"/{HOME}/bin/berth")

    def requirements(self, package: str) -> None:
        """Installs a role's third-party packages, pinned and with their hashes, without their own tests."""
        extra, others = LOCKS[package]
        elsewhere = {name for other in others for name, _ in blocks(other)}
        lock = BUILD / f"{package}.lock"
        lock.write_text("".join(text for name, text in blocks(extra) if name not in elsewhere))
        into = BUILD / f"{package}-{self._version}"
        shutil.rmtree(into, ignore_errors=True)
        pinned = ("--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(lock))
        self._pip(*pinned, "--no-compile", "--target", str(into))
        for left in ("bin", "etc", "share"):
            shutil.rmtree(into / left, ignore_errors=True)
        for path in sorted(into.rglob("*")):
            if path.name == "tests" and path.is_dir():
                shutil.rmtree(path)
            elif path.suffix in UNREAD and path.is_file():
                path.unlink()
        for info in sorted(into.glob("*.dist-info")):
            license_of(info)
        shutil.copytree(into, self.folder(package, self._site), symlinks=True, dirs_exist_ok=True)
        write(self.folder(package, f"usr/share/doc/{package}") / "NOTICE", (ROOT / "NOTICE").read_text())

    def files(self) -> None:
        """Lays down what is not Python: units, configuration, manuals, completions, what guests load."""
        unit = {"berthd.service": ("policy/daemon", "controller"), "berth-guard.service": ("prolog_epilog", "node")}
        for name, (source, role) in unit.items():
            write(self.folder(f"berth-{role}", self._units) / name, (ROOT / source / name).read_text())
        tmpfiles = self.folder("berth-node", "usr/lib/tmpfiles.d") / "berth-node.conf"
        write(tmpfiles, (ROOT / "packaging" / "tmpfiles.conf").read_text())
        write(self.folder("berth-common", "etc/slurm") / "berth.conf", (ROOT / "packaging" / "berth.conf").read_text())
        for name, package in MANUALS.items():
            self.manual(name, package)
        generator = str(ROOT / "packaging" / "completions.py")
        for shell, path in COMPLETIONS.items():
            text = run(str(self._tools / "bin" / "python"), generator, shell)
            file = Path(path.format(zsh=self._zsh))
            write(self.folder("berth-common", file.parent) / file.name, text)
        make("prolog_epilog/injob/c", self.folder("berth-node"), f"builddir={BUILD / 'injob'}")
        shutil.rmtree(self.folder("berth-node", "usr/include"))

    def manual(self, name: str, package: str) -> None:
        """Lays down one manual page."""
        section = name.rpartition(".")[2]
        write(self.folder(package, f"usr/share/man/man{section}") / name, (ROOT / "docs" / "man" / name).read_text())

    def compile(self) -> None:
        """Compiles all Python once, here: what runs as root would do it later, beside the package manager's back."""
        for package in PACKAGES:
            site = self._dest / package / self._site
            if site.is_dir():
                # Packagers set times of files anew, so the compiled files must not go by these.
                mode = ["--invalidation-mode", "unchecked-hash"]
                where = ["-s", str(self._dest / package), "-p", "/"]
                run(self._python, "-m", "compileall", "-q", *mode, *where, str(site))

    def _pip(self, *words: str) -> None:
        run(
            str(self._tools / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *words,
        )


def license_of(info: Path) -> None:
    """Makes sure that a package's license lies beside it; that of nvidia-ml-py stands in its code alone."""
    if any(re.search("licen[sc]e|copying", path.name, re.IGNORECASE) for path in info.rglob("*") if path.is_file()):
        return
    if not info.name.startswith("nvidia_ml_py-"):
        sys.exit(f"stage.py: {info.name} has no license; find its text, and add it as for nvidia-ml-py")
    first = re.match(r"(?:#.*\n)+", info.with_name("pynvml.py").read_text())
    if not first or "Redistribution" not in first[0]:
        sys.exit("stage.py: pynvml.py does not begin with its license any more; find the text")
    write(info / "LICENSE", re.sub(r"^#+ ?", "", first[0], flags=re.MULTILINE).strip() + "\n")


def launcher(python: str, module: str, function: str) -> str:
    """Returns a program that calls a function. Worker processes load it again as a module, and then must not."""
    lines = [f"#!{python}", "import sys", "", f"from {module} import {function}", ""]
    return "\n".join([*lines, 'if __name__ == "__main__":', f"    sys.exit({function}())", ""])


def blocks(extra: str) -> Iterator[tuple[str, str]]:
    """Yields name and lines of each requirement of a lock."""
    text = (ROOT / "requirements" / f"{extra}.lock").read_text()
    for block in re.findall(r"^\S.*\n(?:[ \t]+.*\n)*", text, re.MULTILINE):
        yield block.partition("==")[0], block


def make(folder: str, dest: Path, *words: str) -> None:
    """Builds and installs a folder of C; CFLAGS and SLURM_CFLAGS come from the environment."""
    run("make", "--no-print-directory", "-C", str(ROOT / folder), "install", f"DESTDIR={dest}", *words)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file with exactly this mode."""
    path.write_text(text)
    path.chmod(mode)


def run(*words: str) -> str:
    """Runs a command to its end and returns its output; ends this program where it fails."""
    done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"stage.py: {' '.join(words[:6])} ended with status {done.returncode}; its errors are above")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
