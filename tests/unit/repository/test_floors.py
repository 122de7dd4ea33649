# SPDX-License-Identifier: Apache-2.0
"""What the core may do, who includes whose C, and what a command may load before it does anything.

Who may import whom is in [tool.importlinter] of pyproject.toml.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from policy.plan.opinions.all import all_opinions
from policy.plan.opinions.opinion import Opinion
from policy.request.settings import Settings
from tests.bench import house

ROOT = Path(__file__).parents[3]
UPPER = ("policy.site", "policy.slurm", "policy.daemon", "policy.cli", "policy.serve", "policy.simulate")
"""Floors of policy that may do I/O; everything else in policy is the core."""
IO_MODULES = {"os", "socket", "subprocess", "pathlib", "io", "shutil", "tempfile", "asyncio", "threading", "select"}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def imported(path: Path, tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            names.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, f"{path}: imports are written in full"
            names.add(item.module or "")
            names.update(f"{item.module}.{alias.name}" for alias in item.names)
    return names


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


CORE = [(name, path) for name, path in modules("policy") if not within(name, UPPER)]


@pytest.mark.parametrize(("name", "path"), CORE, ids=[name for name, _ in CORE])
def test_the_core_of_policy_does_no_input_or_output(name: str, path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = imported(path, tree)

    assert not {one for one in names if within(one, (*UPPER, "prolog_epilog"))}
    # A text in memory is no file: `from io import StringIO`, and nothing else of io.
    memory = {"io", "io.StringIO"} if "io.StringIO" in names else set()
    assert not {one for one in names if one.partition(".")[0] in IO_MODULES} - memory
    calls = {item.func.id for item in ast.walk(tree) if isinstance(item, ast.Call) and isinstance(item.func, ast.Name)}
    assert not calls & {"open", "print", "input"}


def names_in(found: ast.ClassDef) -> set[str]:
    """Methods and attributes of a class."""
    names = {item.name for item in found.body if isinstance(item, ast.FunctionDef)}
    for item in ast.walk(found):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            names.add(item.attr)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
    return names


def asks_the_world_outside(core: Iterable[ast.Module], gateway: set[str]) -> set[str]:
    """Names each Protocol that stands for a class outside of the core, and each call of what only a gateway has."""
    items = [item for tree in core for item in ast.walk(tree)]
    classes = [item for item in items if isinstance(item, ast.ClassDef)]
    bases = {one.name: {base.id for base in one.bases if isinstance(base, ast.Name)} for one in classes}
    names = {one.name: names_in(one) for one in classes}
    protocols = {name for name, above in bases.items() if "Protocol" in above}
    known = [names[name].union(*(names.get(base, set()) for base in bases[name])) for name in names.keys() - protocols]
    found = {name for name in protocols if not any(names[name] <= has for has in known)}
    verbs = gateway - set().union(*known)
    calls = [item.func for item in items if isinstance(item, ast.Call)]
    return found | {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in verbs}


GATEWAY = names_in(next(
    item for item in ast.parse((ROOT / "policy/slurm/interface.py").read_text()).body
    if isinstance(item, ast.ClassDef) and item.name == "Gateway"
))  # fmt: skip

PLANNING = ("policy.plan", "policy.placement", "policy.cluster", "policy.sharing")


def test_the_plan_asks_nothing_of_the_world_outside_through_a_protocol_either() -> None:
    trees = [ast.parse(path.read_text()) for name, path in CORE if within(name, PLANNING)]
    assert asks_the_world_outside(trees, GATEWAY) == set()


def test_a_class_that_writes_through_a_protocol_is_found() -> None:
    """As moves of running jobs once did: the decision of a step, and the call of Slurm, in one method."""
    code = """
class Door(Protocol):
    def annotate(self, job, plan): ...

class Mover:
    def __init__(self, door: Door):
        self.door = door

    def step(self, job):
        self.door.annotate(job, "moves")
"""
    assert asks_the_world_outside([ast.parse(code)], GATEWAY) == {"Door", "annotate"}


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return {name.partition(".")[0] for name in done.stdout.split()}


HEAVY = {"numpy", "pandas", "networkx", "scipy", "sklearn"}


@pytest.mark.parametrize(
    "code",
    [
        "from policy.cli.main import build_parser; build_parser()",
        "import policy.cli.jobs.why, policy.slurm.by_command.command",
        "import topology.model, topology.files",
        "import policy.formats.wire, policy.formats.segment, policy.formats.flags",
    ],
)
def test_what_a_user_waits_for_loads_no_number_crunching(code: str) -> None:
    assert not loaded_by(code) & HEAVY


def test_the_planning_process_leaves_the_solver_to_another() -> None:
    assert "scipy" not in loaded_by("import policy.daemon.passes.planning")


def test_the_answering_process_loads_no_graph_library() -> None:
    assert not loaded_by("import policy.daemon.answer.main") & (HEAVY - {"numpy"})


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for package in ("policy", "prolog_epilog", "topology"):
        for name, path in modules(package):
            # Half a second less than a parser needs for all of them.
            for found in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
                places.setdefault(found, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_queue_asks_all_opinions_and_names_none() -> None:
    texts = [path.read_text() for path in (ROOT / "policy/plan/queue").glob("*.py")]
    named = {name for text in texts for name in re.findall(r"policy\.plan\.opinions(?:\.| import )(\w+)", text)}
    assert named == {"all", "opinion"}


def test_each_method_of_the_contract_serves_several_opinions() -> None:
    kinds = {type(one) for one in all_opinions(Settings())}
    methods = [name for name, method in vars(Opinion).items() if callable(method) or isinstance(method, staticmethod)]
    users = {name: [kind.__name__ for kind in kinds if name in vars(kind)] for name in methods if name[0] != "_"}
    assert {name: found for name, found in users.items() if len(found) < 2} == {}


C_FLOORS = (
    ("text",),
    ("config", "node"),
    ("common",),
    ("berthd", "berth_notice", "berth_slurm", "cli_filter", "reply", "spank"),
    ("pin", "request"),
    ("job_submit",),
)
"""Folders of slurm_plugins/, from the lowest floor up; one includes what lies below it."""


def test_no_c_file_includes_one_of_a_higher_or_the_same_floor() -> None:
    floor = {folder: number for number, folders in enumerate(C_FLOORS) for folder in folders}
    plugins = ROOT / "slurm_plugins"
    assert {path.name for path in plugins.iterdir() if path.is_dir()} == floor.keys()
    for path in sorted(plugins.glob("*/*.[ch]")):
        own = path.parent.name
        for included in re.findall(r'#include "([^"]+)"', path.read_text()):
            folder = included.partition("/")[0]
            assert folder == own or floor[folder] < floor[own], f"{path}: {included}"


def test_the_house_stays_as_small_as_it_has_become() -> None:
    """What was reached is not undone; smaller numbers take the place of these."""
    found = house.all_rooms() | house.records(ROOT) | house.keys(ROOT) | house.c_circles(ROOT)
    most = {"rooms of policy.plan": 6, "floors of policy.plan": 5, "targets of make": 35}
    most |= {"keys of berth.conf": 96, "keys of [guard]": 11}
    most |= {"fields of Waiting": 16, "fields of Demand": 19, "attributes of Planner": 20}
    most |= {"mappings of text in plan, placement and cluster": 0}
    assert {name: found[name] for name, limit in most.items() if found[name] > limit} == {}
    assert [name for name, count in found.items() if name.startswith("circles") and count] == []


def test_the_ways_through_the_house_stay_as_short_as_they_have_become() -> None:
    ask = "import json, pathlib; from tests.bench import house; print(json.dumps(house.traced(pathlib.Path.cwd())))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, check=True)
    found = json.loads(done.stdout)
    most = {"answer: files entered": 26, "answer: returns to a room already left": 6, "replan: files entered": 28}
    assert {name: found[name] for name, limit in most.items() if found[name] > limit} == {}
