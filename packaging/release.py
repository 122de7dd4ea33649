#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a release from a clean tree: `packaging/release.py 1.0.0 --deb trixie --rpm bookworm --sign ~/.ssh/release`.

It builds the revision that is checked out: sdist, wheel, packages for each named distribution, an SBOM and notes, with
their sums in dist/release-VERSION. Everything is built twice, and both must have the same bytes. Plugins are built for
the distribution's own Slurm and those that --slurm names; on this computer also for each Slurm below /opt.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "release"
SUMS = "SHA256SUMS"
# What is bundled in packages, of which the SBOM tells.
LOCKS = ("daemon", "report")
PLACES_OF_VERSION = {"pyproject.toml": '^version = "{}"$', "CHANGELOG.md": r"\A# Changelog\n\n## {} \("}


def main() -> int:
    """Builds twice, compares, and lays down one of both with sums and a signature."""
    parser = argparse.ArgumentParser(description="Makes a release from a clean tree.")
    parser.add_argument("version")
    parser.add_argument("--deb", action="append", default=[], metavar="SUITE", help="in a container of it; or: here")
    parser.add_argument("--rpm", action="append", default=[], metavar="SUITE", help="in a container of it; or: here")
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="PREFIX[=HERE][@SUITE]", help="plugins for it too"
    )
    parser.add_argument("--sign", default="", metavar="FILE|gpg:ID", help="sign the sums by an ssh key, or by GPG")
    options = parser.parse_args()
    revision, epoch = checked(options.version)
    environment = os.environ | {"BERTH_REVISION": revision, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC"}
    os.umask(0o022)
    shutil.rmtree(BUILD, ignore_errors=True)
    tools = {lock: tools_environment(lock) for lock in ("packaging", "sbom")}
    builds = []
    for turn in ("first", "second"):
        print(f"release: the {turn} of two builds", flush=True)
        tree = exported(BUILD / turn, options.version)
        (tree / "policy" / "built.txt").write_text(f"revision {revision}\n")
        python = str(tools["packaging"] / "python")
        run(python, "-m", "hatchling", "build", "-d", "dist/pypi", cwd=tree, env=environment)
        for kind, suites in (("deb", options.deb), ("rpm", options.rpm)):
            for suite in suites:
                run("packaging/build.py", kind, *words_for(suite, options.slurm), cwd=tree, env=environment)
        builds.append(tree)
        bill_of_materials(tree, options.version, tools["sbom"], environment)
        (tree / "dist" / "NOTES.md").write_text(notes(options.version, time.gmtime(epoch)))
    if differing := differs(builds[0] / "dist", builds[1] / "dist"):
        sys.exit(f"release.py: two builds differ in {', '.join(differing)}: no release")
    dest = ROOT / "dist" / f"release-{options.version}"
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    for path in files(builds[0] / "dist"):
        shutil.copy2(path, dest / path.name)
    (dest / SUMS).write_text("".join(f"{digest(path)}  {path.name}\n" for path in files(dest)))
    if options.sign:
        sign(dest / SUMS, options.sign)
    print(f"release: {len([*files(dest)])} files in {dest.relative_to(ROOT)}, two builds with the same bytes")
    return 0


def words_for(suite: str, slurms: Sequence[str]) -> list[str]:
    """Returns the words of build.py for a suite, or for this computer: where, and which Slurms besides its own.

    >>> words_for("trixie", ["/opt/a=/srv/a@trixie", "/opt/b@bookworm", "/opt/c"])
    ['--in', 'trixie', '--slurm', '/opt/a=/srv/a', '--slurm', '/opt/c']
    """
    found = [one.partition("@")[0] for one in slurms if one.partition("@")[2] in {"", suite}]
    if suite == "here":
        found += [str(path.parents[2]) for path in sorted(Path("/opt").glob("*/include/slurm/slurm.h"))]
    return [*([] if suite == "here" else ["--in", suite]), *(word for one in found for word in ("--slurm", one))]


def checked(version: str) -> tuple[str, int]:
    """Returns the revision and its time; ends this program where the tree is not that of this version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit("release.py: name the version, such as make release VERSION=1.0.0")
    if left := asked("git", "status", "--porcelain"):
        sys.exit(f"release.py: the tree is not clean; commit or remove these first:\n{left}")
    for name, form in PLACES_OF_VERSION.items():
        if not re.search(form.format(re.escape(version)), (ROOT / name).read_text(), re.MULTILINE):
            sys.exit(f"release.py: {name} is not of {version}; write it there, and commit")
    revision, epoch = asked("git", "log", "-1", "--abbrev=12", "--format=%h %ct").split()
    return revision, int(epoch)


def exported(folder: Path, version: str) -> Path:
    """Lays down what git has of the revision, and nothing else of this tree."""
    folder.mkdir(parents=True)
    archive = folder / "tree.tar"
    run("git", "archive", f"--prefix=berth-{version}/", "-o", str(archive), "HEAD", cwd=ROOT, env=os.environ)
    run("tar", "-xf", str(archive), cwd=folder, env=os.environ)
    archive.unlink()
    return folder / f"berth-{version}"


def tools_environment(lock: str) -> Path:
    """Makes an environment of the build's own tools, and returns where its programs lie."""
    tools = BUILD / f"tools-{lock}"
    run(sys.executable, "-m", "venv", str(tools), cwd=ROOT, env=os.environ)
    pip = (str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "-r", f"requirements/{lock}.lock", cwd=ROOT, env=os.environ)
    return tools / "bin"


def bill_of_materials(tree: Path, version: str, tools: Path, environment: Mapping[str, str]) -> None:
    """Writes the CycloneDX SBOM of what packages bundle: each version that some distribution's Python gets."""
    texts = "".join((tree / "requirements" / f"{lock}.lock").read_text() for lock in LOCKS)
    bundled = tree.parent / "bundled.lock"
    bundled.write_text("".join(sorted(set(re.findall(r"^\S.*\n(?:[ \t]+.*\n)*", texts, re.MULTILINE)))))
    dest = tree / "dist" / f"berth-{version}.cdx.json"
    words = ("requirements", "--output-reproducible", "--pyproject", "pyproject.toml", "--mc-type", "application")
    run(str(tools / "cyclonedx-py"), *words, "-o", str(dest), str(bundled), cwd=tree, env=environment)


def notes(version: str, day: time.struct_time) -> str:
    """Returns the notes: this version's part of the changelog, and the releases of Slurm that it was tested with."""
    _, _, after = (ROOT / "CHANGELOG.md").read_text().partition(f"\n## {version} (")
    text = re.split(r"^## ", after.partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0].strip()
    page = (ROOT / "docs" / "admin" / "releases.md").read_text().partition("\n## Slurm's releases\n")[2]
    rows = re.findall(r"^\|.*\|$", page.partition("\n## ")[0], re.MULTILINE)
    table = "\n".join(rows)
    date = time.strftime("%Y-%m-%d", day)
    return f"# Berth {version} ({date})\n\n{text}\n\n## Releases of Slurm\n\n{table}\n"


def files(folder: Path) -> Iterator[Path]:
    """Yields a release's files; what packagers note of the machine that built is none of them."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.name):
        if path.is_file() and path.suffix not in {".buildinfo", ".changes"} and not path.name.startswith((".", SUMS)):
            yield path


def differs(first: Path, second: Path) -> list[str]:
    """Names the files that are not the same in both builds."""
    one, other = ({path.name: digest(path) for path in files(folder)} for folder in (first, second))
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def digest(path: Path) -> str:
    """Returns a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sign(path: Path, key: str) -> None:
    """Writes a signature beside a file: PATH.sig by ssh-keygen, PATH.asc by GPG."""
    if key.startswith("gpg:"):
        words = ["gpg", "--batch", "--armor", "--detach-sign", "--local-user", key.removeprefix("gpg:"), path.name]
    else:
        words = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(Path(key).expanduser().resolve()), path.name]
    run(*words, cwd=path.parent, env=os.environ)


def asked(*words: str) -> str:
    """Returns what a command prints."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def run(*words: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Runs a command; ends this program where it fails."""
    status = subprocess.run(words, cwd=cwd, env=env, check=False).returncode
    if status:
        sys.exit(f"release.py: {words[0]} ended with status {status}; its errors are above")


if __name__ == "__main__":
    sys.exit(main())
