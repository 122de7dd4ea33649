# SPDX-License-Identifier: Apache-2.0
"""Links of the docs lead somewhere, pages stay short, and the code names pages that exist."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])

READERS = ("user", "admin", "research", "develop")
"""The folders of the pages by reader."""
REFERENCE = {"formats.md", "keys.md", "troubleshooting.md"}
"""Pages to look something up in: as long as they need to be; so are the tables in docs/results."""


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def _without_code(page: Path) -> str:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE)


@functools.cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    found: list[str] = []
    for title in re.findall(r"^#{1,6} (.+)$", _without_code(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = sum(one == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", one) is not None for one in found)
        found.append(f"{slug}-{count}" if count else slug)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", _without_code(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in _anchors(other)):
            broken.append(target)

    assert broken == []


def test_the_code_names_pages_that_exist() -> None:
    folders = ("policy", "topology", "prolog_epilog", "slurm_plugins", "containers", "tests", "deploy", "docs/man")
    named = {
        (str(path.relative_to(ROOT)), page)
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".c", ".h", ".toml", ".service", ".yml", ".1", ".5", ".8"}
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(errors="replace"))
    }

    assert len(named) > 50
    assert sorted(one for one in named if not (ROOT / one[1]).exists()) == []


def test_the_site_has_each_page_and_the_reference_of_the_code(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "packaging" / "docs_site.py", tmp_path], check=True)

    index = (tmp_path / "index.md").read_text()
    pages = [
        page.relative_to(DOCS).with_suffix("").as_posix() for folder in READERS for page in DOCS.glob(f"{folder}/*.md")
    ]
    assert [page for page in pages if not re.search(rf"^{page}$", index, re.MULTILINE)] == []
    assert "berth simulate" in (tmp_path / "reference" / "commands.md").read_text()
    assert "`--locality=LEVEL[@TIME]`" in (tmp_path / "reference" / "flags.md").read_text()
    assert "| `deadline_ms` |" in (tmp_path / "admin" / "keys.md").read_text()
    assert "`berth_gpus`" in (tmp_path / "reference" / "metrics.md").read_text()


def test_the_home_page_has_a_picture_and_its_foot_names_the_holder_of_the_copyright() -> None:
    home = (DOCS / "index.md").read_text()

    assert "![" in home
    assert "**Is it for me?**" in home
    assert [reader for reader in ("a user", "an admin", "a researcher") if f"\n| {reader} | [" not in home] == []
    holder = re.search(r"^Copyright (.+)$", (ROOT / "NOTICE").read_text(), re.MULTILINE)
    assert holder
    assert f'copyright = "{holder[1]}"' in (DOCS / "conf.py").read_text()
