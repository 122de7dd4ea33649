#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the sources of the documentation site: the pages of docs/, and reference pages made from the code.

`make docs` calls it and hands the folder to Sphinx. Links to files outside the docs become plain text, unless
BERTH_SOURCE_URL names a place where the repository can be browsed.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository's root that the site has too."""

# The groups of the navigation. A page that stands in none is an error.
GROUPS = {
    "Users": (
        "user/quickstart",
        "user/concepts",
        "user/cheatsheet",
        "user/jobs",
        "user/requests",
        "user/*",
    ),
    "Admins": ("admin/rollout", "admin/migrate", "admin/install", "admin/operate", "admin/keys", "admin/*"),
    "Researchers": ("research/simulate", "research/simulate-inputs", "research/report", "research/*"),
    "Developers": ("develop/architecture", "develop/*"),
    "Made from the code": ("reference/commands", "reference/flags", "reference/metrics", "reference/messages"),
    "Results": ("results/README", "results/*"),
    "Decisions": ("decisions/README", "decisions/*"),
    "Project": ("project/CHANGELOG", "project/CONTRIBUTING", "project/SECURITY"),
}

FIRST = ("user/quickstart", "user/concepts", "user/cheatsheet", "admin/rollout")
"""What a newcomer reads: at most 800 words each, tables too."""
REFERENCE = ("develop/formats", "admin/keys", "user/troubleshooting", "results/")
"""To look something up in: as long as it needs to be."""
PAGES = {"user": 10, "admin": 15, "research": 8, "develop": 10}
"""How many pages a reader has at most."""


class SiteError(Exception):
    """A page that the navigation does not know, or one that it names in vain."""


def main() -> int:
    """Writes the folder anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "pictures", folder / "pictures")
    shutil.copy(DOCS / "conf.py", folder / "conf.py")
    pages = {page.relative_to(ROOT).as_posix(): page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    pages |= {name: f"project/{name}" for name in PROJECT}
    # README.md stands for the page that people begin with.
    pages["README.md"] = "index.md"
    for source, target in pages.items():
        if source != "README.md":
            _write(folder / target, relinked((ROOT / source).read_text(), source, target, pages))
    for file in (*DOCS.glob("results/*.svg"), *DOCS.glob("research/*.ipynb")):
        shutil.copy(file, folder / file.relative_to(DOCS))
    for name in ("data", "tables"):
        shutil.copytree(DOCS / "results" / name, folder / "results" / name)
    for name, text in reference().items():
        _write(folder / "reference" / f"{name}.md", text)
    index = folder / "index.md"
    index.write_text(index.read_text() + "".join(navigation(folder)))
    for warning in too_long():
        print(f"docs: {warning}", file=sys.stderr)
    return 0


def too_long() -> Iterator[str]:
    """Yields a warning for each page that has more words than its readers have time for."""
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        words, most = len(page.read_text().split()), 800 if name in FIRST else 2000
        if words > most and not name.startswith(REFERENCE):
            yield f"{name}.md has {words:,} words, and {most:,} are enough; cut it"
    for reader, most in PAGES.items():
        if (count := len(list((DOCS / reader).glob("*.md")))) > most:
            yield f"docs/{reader} has {count} pages, and {most} are enough; join two"


def relinked(text: str, source: str, target: str, pages: dict[str, str]) -> str:
    """Returns a page's text with links that hold at its place in the site."""
    base = os.environ.get("BERTH_SOURCE_URL", "").rstrip("/")

    def link(match: re.Match[str]) -> str:
        bang, label, where = match.groups()
        path, mark, anchor = where.partition("#")
        if re.match(r"[a-z]+:", where) or not path:
            return match[0]
        full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if full.rstrip("/") == "docs/decisions":
            full = "docs/decisions/README.md"
        if full in pages:
            return f"{bang}[{label}]({posixpath.relpath(pages[full], posixpath.dirname(target) or '.')}{mark}{anchor})"
        if full.startswith("docs/") and Path(full).suffix in {".csv", ".ipynb", ".png", ".svg"}:
            place = posixpath.relpath(full.removeprefix("docs/"), posixpath.dirname(target) or ".")
            return f"{bang}[{label}]({place})"
        return f"[{label}]({base}/{full})" if base else label

    return re.sub(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)", link, text)


def navigation(folder: Path) -> Iterator[str]:
    """Yields a toctree for each group of pages."""
    there = {page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md")} - {"index"}
    done: set[str] = set()
    for title, names in GROUPS.items():
        found: list[str] = []
        for name in names:
            if name.endswith("/*"):
                found += sorted(page for page in there - done if page.startswith(name[:-1]) and page not in found)
            elif name in there:
                found.append(name)
            else:
                raise SiteError(f"packaging/docs_site.py names {name}, which is no page of docs/; correct GROUPS")
        done |= set(found)
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(found) + "\n```\n"
    if missing := sorted(there - done):
        raise SiteError(f"packaging/docs_site.py has no group for {', '.join(missing)}; add them to GROUPS")


def reference() -> dict[str, str]:
    """Returns the pages that are made from the code, by name."""
    return {
        "commands": "".join(_commands()),
        "flags": "".join(_flags()),
        "metrics": "".join(_metrics()),
        "messages": "".join(_messages()),
    }


def _commands() -> Iterator[str]:
    from policy.cli.main import build_parser  # noqa: PLC0415 - after sys.path is set

    yield "# Commands\n\nThe help of each command, made from its parser. The manual pages (`man berth`) say more.\n"
    for name, parser in _parsers(build_parser()):
        parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100)
        yield f"\n## berth {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


def _parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    # argparse has no public way to list subcommands.
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    for action in below:
        for word, child in action.choices.items():
            yield from _parsers(child, f"{name} {word}".strip())
    if not below:
        yield name, parser


def _flags() -> Iterator[str]:
    """The plugin's own table, which sbatch shows in its help."""
    source = (ROOT / "slurm_plugins" / "config" / "options.c").read_text()
    table = source.partition("berth_options[] = {")[2]
    yield "# Flags\n\nThe flags of sbatch, srun and salloc, as the SPANK plugin registers them.\n"
    yield "[jobs.md](../user/jobs.md#flags) explains them, "
    yield "[formats.md](../develop/formats.md#5-flags) has their exact forms.\n\n"
    yield "| flag | meaning |\n|---|---|\n"
    for name, value, help_text in re.findall(r'\{"([\w-]+)", "([^"]*)",\s*((?:"[^"]*"\s*)+),', table):
        shown = value.replace("|", "\\|")
        meaning = "".join(re.findall(r'"([^"]*)"', help_text))
        yield f"| `--{name}={shown}` | {meaning} |\n"


def _metrics() -> Iterator[str]:
    from policy.serve.metrics.families import PAGES, TABLE  # noqa: PLC0415

    yield "# Metrics of berthd\n\nThe names that `/metrics/PAGE` serves, made from the code's table.\n"
    yield "[metrics.md](../admin/metrics.md) has rules, alerts and the guard's metrics.\n"
    for page, about in PAGES.items():
        yield f"\n## /metrics/{page}\n\nHas {about}.\n\n| name | kind | labels | meaning |\n|---|---|---|---|\n"
        for spec in TABLE:
            if spec.page == page:
                labels = ", ".join(f"`{label}`" for label in spec.labels)
                yield f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |\n"


def _messages() -> Iterator[str]:
    yield "# Messages by number\n\nAll ids in one list. "
    yield "[troubleshooting.md](../user/troubleshooting.md) has them by subject.\n\n"
    yield "| id | meaning | what to do |\n|---|---|---|\n"
    yield from sorted(
        re.findall(r"^\| BERTH-[0-9]+ \|.*\n", (DOCS / "user" / "troubleshooting.md").read_text(), re.MULTILINE)
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SiteError as problem:
        sys.exit(f"docs: {problem}")
