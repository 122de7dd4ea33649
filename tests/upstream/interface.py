# SPDX-License-Identifier: Apache-2.0
"""The part of one release's interface that Berth uses, as texts by name, and what differs between two releases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .declarations import aliases, constants, functions, literals, plain, structures
from .trees import Tree
from .uses import WORD, Uses

Interface = Mapping[str, str]

PUBLIC = ("slurm/slurm.h", "slurm/slurm.h.in", "slurm/slurm_errno.h", "slurm/slurmdb.h", "slurm/spank.h")
INTERNAL = ("src/common/", "src/interfaces/", "src/slurmctld/")
PLUGIN_TYPES = {
    "job_submit": ("src/interfaces/job_submit.c", "src/slurmctld/job_submit.c", "src/common/job_submit.c"),
    "cli_filter": ("src/interfaces/cli_filter.c", "src/common/cli_filter.c"),
}
SPANK = ("src/interfaces/spank.c", "src/common/plugstack.c")
LISTED = {"squeue -O": "src/squeue/", "scontrol update": "src/scontrol/", "sacct -o": "src/sacct/"}
JSON_RECORDS = ("JOB_INFO", "NODE")
ORDER = "scontrol show node"


def interface(tree: Tree, uses: Uses) -> dict[str, str]:
    """Reads all that Berth uses; what a release does not have is left out."""
    parts = (_declared(tree, uses), _plugin_types(tree), _listed(tree, uses), _json(tree, uses), _words(tree, uses))
    return {name: text for part in parts for name, text in part}


def versions(tree: Tree) -> dict[str, str]:
    """Returns the numbers that each release raises: told, and no change of what Berth uses."""
    header = tree.text("src/common/slurm_protocol_common.h")
    found = {name: text for name, text in tree.meta.items() if name in {"Version", "API_CURRENT"}}
    for name in ("SLURM_PROTOCOL_VERSION", "SLURM_MIN_PROTOCOL_VERSION"):
        if match := re.search(rf"#define {name}\s+(.+)", header):
            found[name] = match[1]
    return found


def changes(old: Interface, new: Interface) -> list[str]:
    """Names what of `old` is gone or another in `new`, and what plugins have to have since."""
    said = [f"{name}: gone; it was {text}" for name, text in old.items() if name not in new]
    for name, text in old.items():
        after = new.get(name, text)
        if text != after and not (name == ORDER and _in_order(text, after)):
            said.append(f"{name}: {text} became {after}")
    return sorted(
        said + [f"{name}: new, {new[name]}" for name in new.keys() - old.keys() if name.startswith("plugin ")]
    )


def _in_order(old: str, new: str) -> bool:
    """Tells whether the keys that both have come in the same order: a new one between two costs nothing."""
    before, after = old.split(), new.split()
    return [key for key in before if key in after] == [key for key in after if key in before]


def _declared(tree: Tree, uses: Uses) -> Iterator[tuple[str, str]]:
    public = "\n".join(plain(tree.text(path)) for path in PUBLIC)
    known = aliases(public)
    for struct, fields in structures(public).items():
        if struct in uses.names or uses.public:
            used = {name: kind for name, kind in fields.items() if name in uses.members or uses.public}
            yield from ((f"field {struct}.{name}", _named(kind, known)) for name, kind in used.items())
    yield from ((f"constant {name}", "defined") for name in constants(public) & uses.names)
    prototypes = functions(public)
    ours = {name for name in uses.names if name.startswith(("slurm_", "spank_"))}
    ours |= prototypes.keys() if uses.public else set()
    yield from ((f"function {name}", _named(text, known)) for name, text in prototypes.items() if name in ours)
    yield from _inside(tree, (ours - prototypes.keys()) | uses.symbols)


def _inside(tree: Tree, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Returns what no public header declares: under its own name, or without Slurm's prefix."""
    exported = "\n".join(tree.texts[path] for path in tree.under("src/common/", suffix=".h"))
    inside = "\n".join(plain(tree.texts[path]) for path in tree.under(*INTERNAL, suffix=".h"))
    declared, known = functions(inside), aliases(inside)
    for name in wanted:
        bare = name.removeprefix("slurm_")
        kind = declared.get(name) or (declared.get(bare) if re.search(rf"\b{name}\b", exported) else None)
        if kind:
            yield f"function {name}", _named(kind, known)
        elif variable := re.search(rf"\bextern\s+([\w\s\*]+?)\b{name}\s*;", inside):
            yield f"variable {name}", " ".join(variable[1].split())


def _named(kind: str, known: Mapping[str, str]) -> str:
    """A structure by its typedef, where it has one: `struct job_record *` and `job_record_t *` are the same."""
    return re.sub(r"\w+", lambda word: known.get(word[0], word[0]), kind)


def _plugin_types(tree: Tree) -> Iterator[tuple[str, str]]:
    """Returns what Slurm asks of each plugin of ours, whether it has that yet or not."""
    known = aliases("\n".join(plain(tree.texts[path]) for path in tree.under("slurm/", *INTERNAL, suffix=".h")))
    known |= aliases(plain(tree.text("slurm/slurm.h.in")))
    for kind, paths in PLUGIN_TYPES.items():
        text = plain(tree.text(*paths))
        for struct, fields in structures(text).items():
            if struct.endswith("ops_t"):
                yield from ((f"plugin {kind}.{name}", _named(one, known)) for name, one in fields.items())
        if listed := re.search(r"\bsyms\[\]\s*=\s*\{(.*?)\}", text, re.DOTALL):
            yield f"plugin {kind}", ", ".join(name for name in literals(listed[1]))
    spank = plain(tree.text("slurm/spank.h"))
    if hook := re.search(r"typedef\s+int\s+\(spank_f\)\s*\((.*?)\)", spank, re.DOTALL):
        yield "plugin spank", " ".join(hook[1].split())
    yield from ((f"hook {name}", "called") for name in re.findall(r"\bspank_f\s+(slurm_spank_\w+)", spank))


def _listed(tree: Tree, uses: Uses) -> Iterator[tuple[str, str]]:
    """Returns what commands take and print, by their tables and formats."""
    for command, folder in LISTED.items():
        taken = {word.lower() for path in tree.under(folder) for word in literals(tree.texts[path])}
        yield from ((f"{command} {name}", "taken") for name in uses.taken[command] if name.lower() in taken)
    api = {path: " ".join(literals(tree.texts[path])) for path in tree.under("src/api/")}
    shown = set(re.findall(r"\b([A-Z]\w+)=", " ".join(api.values())))
    yield from ((f"scontrol show {name}", "shown") for name in uses.shown if name in shown)
    node = dict.fromkeys(re.findall(r"\b([A-Z]\w+)=", api.get("src/api/node_info.c", "")))
    yield ORDER, " ".join(name for name in node if name in uses.node)
    forms = {
        form[:5] for form in literals(tree.text("src/common/slurm_opt.c")) if form.startswith(("gres:gpu", "gres/gpu"))
    }
    if forms:
        yield "a request for GPUs begins with", " or ".join(sorted(forms))


def _json(tree: Tree, uses: Uses) -> Iterator[tuple[str, str]]:
    """Returns the kinds of the keys of a job and a node, by the newest form that this release writes."""
    parsers = tree.under("src/plugins/data_parser/", suffix="parsers.c")
    newest = tree.texts[parsers[-1]] if parsers else ""
    flags = set(re.findall(r"^\s*addfa\((\w+),", newest, re.MULTILINE))
    for record in JSON_RECORDS:
        block = re.search(rf"PARSER_ARRAY\({record}\)\[\]\s*=\s*\{{(.*?)\n\}};", newest, re.DOTALL)
        for macro, kinds, key in re.findall(r'add_parse(\w*)\(([^"]*?)"([\w/]+)"', block[1] if block else ""):
            kind = re.findall(r"\b[A-Z][A-Z0-9_]+\b", kinds)[:1]
            if key in uses.json and kind:
                is_list = "array" in macro or kind[0] in flags
                yield f"JSON {record.lower()} {key}", f"list of {kind[0]}" if is_list else kind[0]


def _words(tree: Tree, uses: Uses) -> Iterator[tuple[str, str]]:
    """Returns the words of Berth's texts that stand in a text of Slurm's as well."""
    left_out = "src/plugins/data_parser/"
    texts = (one for path in tree.under("src/") if not path.startswith(left_out) for one in literals(tree.texts[path]))
    found = {word for one in texts for word in WORD.findall(one)}
    yield from ((f"word {word}", "in a text") for word in uses.words & found)
