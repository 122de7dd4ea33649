# SPDX-License-Identifier: Apache-2.0
"""How the code is laid out, one column for each revision: `python -m tests.bench.house [REVISION...]`.

    rooms      modules and packages directly in policy/, and in policy/plan, from grimp's graph; type-only imports count
    floors     rooms on the longest chain of imports, where a circle counts as one
    circles    files that import each other; a C file and its header are one
    answer     a submission for two GPUs on a cluster of four nodes, from the datagram's bytes to those of the reply,
               traced: files and lines that are run, and how often a file is the first one of a room that was left
    replan     one pass over that cluster with three waiting jobs, traced

Without a revision the working tree is measured. Lines of code are without comments, docstrings and blank lines.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("topology", "policy", "prolog_epilog", "slurm_plugins")
PYTHON = PRODUCT[:3]
WORDS = ("Of", "What", "Who", "Whether", "Where", "How", "Why")
MOST_FILES = 12
"""Files that one folder may have."""

Figures = dict[str, int]


def main() -> None:
    """Measures each revision in a process of its own, and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description="How the code is laid out, one column for each revision.")
    parser.add_argument("revisions", nargs="*", help="git revisions; default: the working tree")
    parser.add_argument("--json", action="store_true", help="print the working tree's figures as JSON")
    args = parser.parse_args()
    if args.json:
        sys.stdout.write(json.dumps(figures(Path.cwd())) + "\n")
        return
    columns = {one: at_revision(one) for one in args.revisions} or {"working tree": measured(ROOT)}
    sys.stdout.write(f"| figure | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}\n")
    for name in dict.fromkeys(name for found in columns.values() for name in found):
        cells = (f"{found[name]:,}" if name in found else "" for found in columns.values())
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")


def at_revision(revision: str) -> Figures:
    """Measures the files of a revision."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return measured(Path(folder))


def measured(tree: Path) -> Figures:
    """Runs this file in a tree, so that its modules are the ones that are imported."""
    done = subprocess.run(
        [sys.executable, "-P", __file__, "--json"],
        cwd=tree,
        env={"PYTHONPATH": str(tree)},
        capture_output=True,
        check=True,
    )
    found: Figures = json.loads(done.stdout)
    return found


def figures(tree: Path) -> Figures:
    """Returns all figures of a tree whose packages can be imported."""
    return {**all_rooms(), **c_circles(tree), **texts(tree), **keys(tree), **records(tree), **traced(tree)}


def all_rooms() -> Figures:
    """Counts rooms, floors and circles."""
    found: Figures = {}
    for package in PYTHON:
        imports = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
        modules = nx.DiGraph()
        for importer in imports.modules:
            modules.add_edges_from((importer, one) for one in imports.find_modules_directly_imported_by(importer))
        if package == "policy":
            found |= rooms(imports, modules, "policy") | rooms(imports, modules, "policy.plan")
        circles = [one for one in nx.strongly_connected_components(modules) if len(one) > 1]
        found[f"circles of files in {package}"] = len(circles)
    return found


def rooms(imports: grimp.ImportGraph, modules: nx.DiGraph, package: str) -> Figures:
    """Counts rooms and floors of a package."""
    between = nx.DiGraph()
    between.add_nodes_from(imports.find_children(package))
    depth = package.count(".") + 2
    for edge in modules.edges:
        ends = [".".join(module.split(".")[:depth]) for module in edge]
        if ends[0] != ends[1] and set(ends) <= set(between.nodes):
            between.add_edge(*ends)
    return {
        f"rooms of {package}": len(between),
        f"floors of {package}": nx.dag_longest_path_length(nx.condensation(between)) + 1,
        f"rooms in circles, {package}": sum(
            len(one) for one in nx.strongly_connected_components(between) if len(one) > 1
        ),
    }


def c_circles(tree: Path) -> Figures:
    """Counts circles of includes, where a C file and its header are one."""
    units = nx.DiGraph()
    for path in (path for name in PRODUCT for path in (tree / name).rglob("*.[ch]")):
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            found = next((up / included for up in path.parents if (up / included).exists()), path)
            units.add_edge(path.with_suffix(""), found.with_suffix(""))
    return {"circles of C files": sum(len(one) > 1 for one in nx.strongly_connected_components(units))}


def keys(tree: Path) -> Figures:
    """Counts the keys of berth.conf, and the guard's among them; a tree without their table has no figure."""
    path = tree / "packaging" / "keys.toml"
    if not path.exists():
        return {}
    tables = tomllib.loads(path.read_text())

    def below(part: object) -> int:
        if not isinstance(part, dict):
            return 0
        return 1 if "type" in part else sum(map(below, part.values()))

    return {"keys of berth.conf": below(tables), "keys of [guard]": below(tables["guard"])}


def records(tree: Path) -> Figures:
    """Counts what the greatest records of the planner hold."""
    classes = {
        body.name: body
        for path in sorted((tree / "policy").rglob("*.py"))
        for body in ast.parse(path.read_text()).body
        if isinstance(body, ast.ClassDef)
    }
    found: Figures = {}
    for name in ("Waiting", "Demand"):
        found[f"fields of {name}"] = sum(isinstance(one, ast.AnnAssign) for one in classes[name].body)
    stored = (one for one in ast.walk(classes["Planner"]) if isinstance(one, ast.Attribute))
    own = {one.attr for one in stored if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"}
    found["attributes of Planner"] = len(own)
    found["mappings of text in plan, placement and cluster"] = sum(mappings_of_text(tree))
    targets = re.search(r"^\.PHONY:(.*)", (tree / "Makefile").read_text(), re.MULTILINE)
    found["targets of make"] = len(targets[1].split()) if targets else 0
    return found


def mappings_of_text(tree: Path) -> Iterator[int]:
    """Yields the annotations of each file of the core by which it takes, gives or holds a mapping of text."""
    for room in ("plan", "placement", "cluster"):
        for path in sorted((tree / "policy" / room).rglob("*.py")):
            yield len(re.findall(r"\b(?:Mapping|dict)\[str, str\]", path.read_text()))


def texts(tree: Path) -> Figures:
    """Counts what the text of the product tells."""
    files = [path for name in PRODUCT for path in (tree / name).rglob("*") if path.suffix in {".py", ".c", ".h"}]
    python = {path: ast.parse(path.read_text()) for path in files if path.suffix == ".py"}
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    classes = Counter(
        part.name
        for parsed in python.values()
        for part in parsed.body
        if isinstance(part, ast.ClassDef) and not part.name.startswith("_")
    )
    first = Counter(word for parsed in python.values() for word in first_words(parsed))
    return {
        f"folders with more than {MOST_FILES} files": sum(count > MOST_FILES for count in folders.values()),
        "public class names taken twice": sum(count > 1 for count in classes.values()),
        **{f"docstrings that begin with {word}": first[word] for word in WORDS},
        "lines of product": sum(len(path.read_text().splitlines()) for path in files),
        "lines of code in it": sum(code_lines(path) for path in files),
        "lines of the page": sum(
            len(path.read_text().splitlines()) for path in (tree / "policy").glob("**/web/static/*.[cjh]*")
        ),
    }


def first_words(parsed: ast.Module) -> Iterator[str]:
    """Yields the first word of each docstring; a text below a name counts as one."""
    for part in ast.walk(parsed):
        if not isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for one in part.body:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.value.value.partition(" ")[0].strip()


def code_lines(path: Path) -> int:
    """Counts lines that hold code."""
    if path.suffix != ".py":
        text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.DOTALL)
        return sum(bool(line.partition("//")[0].strip()) for line in text.splitlines())
    lines: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in {tokenize.COMMENT, tokenize.NL}:
            continue
        if token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}:
            begins = True
            continue
        if not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(lines)


def traced(tree: Path) -> Figures:
    """Runs one answer and one replan, and counts the files and lines of the product that they enter."""
    names: dict[str, object] = {}
    for wanted in ("class Plan:", "class Settings:", "class BerthPolicy("):
        path = min(path for path in (tree / "policy").rglob("*.py") if f"\n{wanted}" in path.read_text())
        module = ".".join(path.relative_to(tree).with_suffix("").parts)
        name = wanted.split()[1].rstrip("(:")
        exec(f"from {module} import {name}", names)  # noqa: S102 - the place differs between revisions
    exec(SCENE, names)  # noqa: S102
    found: Figures = {}
    for call in ("answer", "replan"):
        lines, rooms = entered(call, names, str(tree))
        found |= {f"{call}: files entered": len(lines), f"{call}: lines run": sum(map(len, lines.values()))}
        found |= {f"{call}: returns to a room already left": len(rooms) - len(set(rooms))}
    return found


SCENE = """
from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Snapshot
from policy.formats import wire
from policy.site.config import Config
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting
look = reading(
    [node("n1", used=0b00111111), node("n2", used=0b00001111), node("n3", used=0xFF), node("n4", used=0xFF)],
    [running(1, "n1", 0b00111111, 600), running(2, "n2", 0b1111, 60), running(3, "n3", 0xFF, 900),
     running(4, "n4", 0xFF, 5), waiting(11, "n3", 0b11), waiting(12, "n3", 0b1111), waiting(13, "n4", 0xFF)],
)
at_hand, in_a_pass = book(look), book(look)
for one in (at_hand, in_a_pass):
    one.fleet.tables.warm()  # as berthd does
plan = Plan(BerthPolicy(), Settings())
fields = submit(tres_per_job="gres/gpu:2")
datagram, berthd = wire.encode("submit", fields), Answerer(Config(), "0", 1)
berthd.take(Snapshot(at_hand.cluster, frozenset(), "24.11.5", "recorded", ""), NOW)
calls = {
    "answer": lambda: berthd.answer(datagram, NOW),
    "replan": lambda: plan.replan(in_a_pass, look.jobs),
}
"""


def entered(call: str, names: Mapping[str, object], tree: str) -> tuple[dict[str, set[int]], list[str]]:
    """Returns the lines of each file of the product that a call runs, and the rooms in the order of its calls."""
    lines: dict[str, set[int]] = {}
    rooms: list[str] = []
    within = tuple(f"{tree}/{name}/" for name in PYTHON)

    def trace(frame: object, _what: str, _argument: object) -> object:
        path = frame.f_code.co_filename  # type: ignore[attr-defined]
        if not path.startswith(within):
            return None
        room = path.rpartition("/")[0]
        if path not in lines and rooms[-1:] != [room]:
            rooms.append(room)
        lines.setdefault(path, set()).add(frame.f_lineno)  # type: ignore[attr-defined]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        names["calls"][call]()  # type: ignore[index]
    finally:
        sys.settrace(before)
    return lines, rooms


if __name__ == "__main__":
    main()
