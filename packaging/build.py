#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds Berth's packages from this tree: `packaging/build.py deb`, `packaging/build.py rpm`.

They fit the distribution and the Slurm of the machine that builds. `--in trixie` builds in a container of that Debian
suite, with Debian's own Slurm, `--in ubuntu:24.04` in one of that image. `--slurm /opt/slurm` adds a package of plugins
for a Slurm under that prefix, `--slurm /opt/slurm=HERE` for one that lies elsewhere while packages are built in a
container. Packages come to dist/deb-SYSTEM or dist/rpm-SYSTEM.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "packaging"
BUILD = ROOT / "build" / "packaging"
# What a package is built from.
SOURCES = (
    *("CHANGELOG.md", "LICENSE", "NOTICE", "README.md", "docs/man", "packaging", "policy", "prolog_epilog"),
    *("pyproject.toml", "requirements", "slurm_plugins", "topology"),
)
TOOLS = {"deb": ("dpkg-buildpackage", "dh"), "rpm": ("rpmbuild",)}
# Packages of Slurm, Debian's and SchedMD's, one of which each computer has that loads a plugin.
SLURM_PACKAGES = {
    "deb": ("slurm-client", "slurm-smd", "slurm-wlm-basic-plugins", "slurmctld", "slurmd"),
    "rpm": ("slurm",),
}
# What `berth --version` tells beside the version.
BUILT = "policy/built.txt"
# The oldest Slurm whose plugins Berth's can be.
OLDEST = (24, 11, 0)


def main() -> int:
    """Builds the packages of one kind."""
    parser = argparse.ArgumentParser(description="Builds Berth's packages from this tree.")
    parser.add_argument("kind", choices=sorted(TOOLS))
    parser.add_argument("--in", dest="suite", default="", metavar="SUITE|IMAGE", help="in a container of it")
    parser.add_argument("--python", default="python3", help="the Python that Berth runs with, such as python3.11")
    parser.add_argument("--slurm", action="append", default=[], metavar="PREFIX[=HERE]", help="plugins for it too")
    options = parser.parse_args()
    os.umask(0o022)
    if options.suite:
        return in_container(options.suite, options.kind, options.python, options.slurm)
    for tool in TOOLS[options.kind]:
        if not shutil.which(tool):
            sys.exit(f"build.py: no {tool} in PATH; install it, or build in a container: make {options.kind} IN=trixie")
    slurms = releases([prefix.partition("=")[0] for prefix in options.slurm])
    for release, prefix in slurms.items():
        say(f"plugins for Slurm {release}" + (f" under {prefix}" if prefix else ""))
    if not slurms:
        say("no headers of Slurm 24.11 or later here: no package of plugins")
    tree = BUILD / options.kind / f"berth-{version()}"
    shutil.rmtree(tree.parent, ignore_errors=True)
    for name in SOURCES:
        copy(ROOT / name, tree / name)
    python = python_of(options.python)
    (tree / BUILT).write_text(f"revision {revision()}, built for {system()} and {python}\n")
    dest = ROOT / "dist" / f"{options.kind}-{system()}"
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    found = deb(tree, slurms, python) if options.kind == "deb" else rpm(tree, slurms, python)
    for path in found:
        shutil.move(path, dest / path.name)
        say(f"{(dest / path.name).relative_to(ROOT)} ({(dest / path.name).stat().st_size / 1e6:.1f} MB)")
    return 0


def deb(tree: Path, slurms: Mapping[str, str], python: str) -> list[Path]:
    """Runs dpkg-buildpackage on a tree, which it gives the folder debian; returns the packages."""
    words = values(python) | {"VERSION": f"{version()}-1~{system()}"}
    debian = tree / "debian"
    shutil.copytree(HERE / "deb", debian)
    (debian / "control").write_text(fill(debian / "control.in", words))
    (debian / "changelog").write_text(fill(debian / "changelog.in", words))
    for slurm, prefix in slurms.items():
        of_slurm = words | values_of(slurm)
        plugins = of_slurm["PLUGINS"]
        with (debian / "control").open("a") as file:
            file.write(fill(debian / "control-plugins.in", of_slurm))
        (debian / f"{plugins}.preinst").write_text(fill(debian / "plugins.preinst.in", of_slurm))
        (debian / f"{plugins}.lintian-overrides").write_text(fill(debian / "plugins.lintian-overrides.in", of_slurm))
        with (debian / "plugins").open("a") as file:
            file.write(f"--plugins {plugins}={prefix}\n")
    for template in debian.glob("*.in"):
        template.unlink()
    environment = os.environ | {"BERTH_PYTHON": python, "SOURCE_DATE_EPOCH": str(epoch())}
    run("dpkg-buildpackage", "--build=binary", "--no-sign", cwd=tree, env=environment)
    return sorted(path for path in tree.parent.iterdir() if path.suffix in {".deb", ".buildinfo", ".changes"})


def rpm(tree: Path, slurms: Mapping[str, str], python: str) -> list[Path]:
    """Runs rpmbuild on an archive of the tree; returns the packages."""
    top = tree.parent / "top"
    (top / "SOURCES").mkdir(parents=True)
    run("tar", "-czf", str(top / "SOURCES" / f"{tree.name}.tar.gz"), tree.name, cwd=tree.parent, env=dict(os.environ))
    words = values(python)
    spec = top / "berth.spec"
    parts = [fill(HERE / "rpm" / "plugins.spec.in", words | values_of(slurm)) for slurm in slurms]
    spec.write_text("".join([(HERE / "rpm" / "berth.spec").read_text(), *parts]))
    plugins = " ".join(f"--plugins {values_of(slurm)['PLUGINS']}={prefix}" for slurm, prefix in slurms.items())
    date = time.strftime("%a %b %d %Y", time.gmtime(epoch()))
    defines = {"_topdir": str(top), "berth_version": version(), "berth_python": python, "berth_date": date}
    defines |= {"berth_plugins": plugins or "%{nil}", "berth_maintainer": words["MAINTAINER"]}
    told = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "-bb", *told, str(spec), cwd=tree, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())})
    return sorted((top / "RPMS").rglob("*.rpm"))


def in_container(suite: str, kind: str, python: str, slurms: Sequence[str] = ()) -> int:
    """Builds in a container with the tools and this tree; what it wrote belongs to whoever calls."""
    image = tools_image(suite)
    inside = f"umask 022; tar -C /src -cf - {' '.join(SOURCES)} | tar -C /berth -xf - && "
    others = [one.partition("=") for one in slurms]
    more = "".join(f" --slurm {prefix}" for prefix, _, _ in others)
    inside += f"cd /berth && packaging/build.py {kind} --python {python}{more} && "
    inside += f"cp -r dist /src/ && chown -R {os.getuid()}:{os.getgid()} /src/dist"
    words = ["docker", "run", "--rm", "--network", "host", "--volume", f"{ROOT}:/src", "--tmpfs", "/berth:exec"]
    words += [word for prefix, _, here in others for word in ("--volume", f"{here or prefix}:{prefix}:ro")]
    words += ["--env", f"BERTH_REVISION={revision()}", "--env", f"SOURCE_DATE_EPOCH={epoch()}"]
    names = (
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "http_proxy", "https_proxy", "no_proxy"),
        *("BERTH_MAINTAINER", "DEBFULLNAME", "DEBEMAIL"),
    )
    words += [word for name in names if os.environ.get(name) for word in ("--env", name)]
    bundle = ROOT / "build" / "docker-inputs" / "ca-bundle.pem"
    if bundle.exists():
        words += ["--env", "PIP_CERT=/src/build/docker-inputs/ca-bundle.pem"]
    (ROOT / "dist").mkdir(exist_ok=True)
    return subprocess.run([*words, image, "sh", "-c", inside], check=False).returncode


def tools_image(suite: str) -> str:
    """Builds the image with the packagers' tools and Slurm's headers on a suite or an image, and names it."""
    sys.path.insert(0, str(ROOT))
    from containers.images import offer_ca_bundle  # noqa: PLC0415 - only where there is Docker

    offer_ca_bundle()
    base = suite
    if ":" not in suite:
        base = f"debian:{suite}-slim"
        run(str(ROOT / "containers" / "base-image"), suite, cwd=ROOT, env=dict(os.environ))
    image = f"berth-packaging:{suite.replace(':', '-')}"
    words = ["docker", "build", "--quiet", "--network", "host", "--tag", image]
    words += ["--build-arg", f"BASE={base}", str(HERE / "container")]
    run(*words, cwd=ROOT, env=dict(os.environ))
    return image


def releases(prefixes: Sequence[str]) -> dict[str, str]:
    """Returns the prefix of each Slurm that plugins can be built for; empty for the one that the compiler finds."""
    own = os.environ.get("SLURM_CFLAGS", "").split()
    found = {slurm_release(own): ""}
    for prefix in prefixes:
        release = slurm_release([f"-I{prefix}/include"])
        if not release:
            sys.exit(f"build.py: {prefix}/include has no headers of Slurm 24.11 or later")
        found.setdefault(release, prefix)
    return {release: prefix for release, prefix in found.items() if release}


def slurm_release(flags: Sequence[str]) -> str:
    """Returns the release of the Slurm whose headers the compiler finds, `24.11.5`; empty where it cannot be used."""
    words = [*os.environ.get("CC", "gcc").split(), "-E", "-P", *flags, "-"]
    source = "#include <slurm/slurm.h>\nBERTH SLURM_VERSION_NUMBER\n"
    try:
        done = subprocess.run(words, input=source, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"^BERTH (0x[0-9a-fA-F]+)", done.stdout, re.MULTILINE)
    if not found:
        return ""
    number = int(found[1], 16)
    release = (number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF)
    return "{}.{:02}.{}".format(*release) if release >= OLDEST else ""


def values(python: str) -> dict[str, str]:
    """Returns what the templates leave open."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch()))
    return {"MAINTAINER": maintainer(os.environ), "DATE": date, "PYTHON": python}


def values_of(slurm: str) -> dict[str, str]:
    """Returns what the templates of a package of plugins leave open."""
    major, _, micro = slurm.rpartition(".")
    following = f"{major}.{int(micro) + 1}"
    bounds = [f"{name} ({bound}~)" for name in SLURM_PACKAGES["deb"] for bound in (f"<< {slurm}", f">= {following}")]
    return {"SLURM": slurm, "NEXT": following, "PLUGINS": f"berth-slurm-plugins-{slurm}", "BREAKS": ", ".join(bounds)}


def maintainer(environment: Mapping[str, str]) -> str:
    """Returns who answers for the packages: BERTH_MAINTAINER, else what Debian's own tools read, else the project.

    Debian demands an address. One in `.invalid` is nobody's (RFC 2606).
    """
    name, address = environment.get("DEBFULLNAME", ""), environment.get("DEBEMAIL", "")
    site = f"{name} <{address}>" if name and address else ""
    found = environment.get("BERTH_MAINTAINER") or site or "Berth project <berth@berth.invalid>"
    if not re.fullmatch(r"[^<>\n]+ <[^<>@\s]+@[^<>@\s]+>", found):
        sys.exit(f"build.py: {found} names no maintainer; write BERTH_MAINTAINER='Name <address>'")
    return found


def epoch() -> int:
    """Returns the time that packages carry: SOURCE_DATE_EPOCH, else the last change of the version."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or (ROOT / "pyproject.toml").stat().st_mtime)


def revision() -> str:
    """Returns the revision that is built: BERTH_REVISION, else that of the checkout."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    if told := os.environ.get("BERTH_REVISION"):
        return told
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False) if shutil.which("git") else None
    return (done.stdout.strip() if done else "") or "unknown"


def version() -> str:
    """Returns Berth's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def system() -> str:
    """Returns the distribution and its release, as in `debian13`."""
    lines = Path("/etc/os-release").read_text().splitlines()
    known = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    # Debian's testing suite has no number yet.
    return known["ID"] + known.get("VERSION_ID", known.get("VERSION_CODENAME", ""))


def python_of(name: str) -> str:
    """Returns the name of this Python with its version, `python3.13`: wheels fit no other."""
    code = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')"
    done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else sys.exit(f"build.py: {name} cannot be started")


def fill(template: Path, words: dict[str, str]) -> str:
    """Returns a template with its `@WORDS@` filled in."""
    return re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], template.read_text())


def copy(source: Path, dest: Path) -> None:
    """Copies a file or a folder without what Python and compilers left there."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, dest, ignore=shutil.ignore_patterns("__pycache__", "*.o", "*.d", "*.so"))
    else:
        shutil.copy2(source, dest)


def say(text: str) -> None:
    """Shows progress at once, even through a pipe."""
    print(f"packages: {text}", flush=True)


def run(*words: str, cwd: Path, env: dict[str, str]) -> None:
    """Runs a command; ends this program where it fails."""
    status = subprocess.run(words, cwd=cwd, env=env, check=False).returncode
    if status:
        sys.exit(f"build.py: {words[0]} ended with status {status}; its errors are above")


if __name__ == "__main__":
    sys.exit(main())
