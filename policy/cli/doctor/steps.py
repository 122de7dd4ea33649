# SPDX-License-Identifier: Apache-2.0
"""Finds the rollout step of a site (docs/admin/rollout.md), since doctor checks other things at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from policy.cli.output import some
from policy.cluster.untyped import untyped
from policy.formats.slurm_facts import NodeFacts

Name: TypeAlias = Literal["observe", "advise", "exact", "sharing"]

EXACT: tuple[Name, ...] = ("exact", "sharing")
"""The steps on which pins name GPUs."""

_ALLOC = frozenset({"alloc", "contain", "runinjob", "x11", "forcerequeueonfail"})
"""Words of PrologFlags that are, or imply, Alloc."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """The step that is in force, and what is wrong with it; empty if nothing is."""

    name: Name
    text: str
    wrong: str = ""


def step_of(config: Mapping[str, str], nodes: Sequence[NodeFacts], *, plain: bool) -> RolloutStep:
    """Returns the step of a site; `plain` is True if `[hook] layout` is plain."""
    loose = some([node.name for node in untyped(nodes)])
    typed = [node.name for node in nodes if node.gpus]
    if plain:
        wrong = f'{some(typed)}: each GPU has a type of its own there; write layout = "exact"' if typed else ""
        return RolloutStep("advise", "advise: Berth names nodes, and Slurm chooses the GPUs there", wrong)
    if "berth" not in plugins(config) and not typed:
        return RolloutStep("observe", "observe: Slurm runs without Berth; berth observe shows what would be better")
    if loose and not typed:
        wrong = 'no GPU has a type of its own; write layout = "plain" into [hook], or see berth migrate plan exact'
        return RolloutStep("advise", "", wrong)
    rest = f"; on {loose} Slurm alone chooses, and each needs its model as a feature" if loose else ""
    name: Name = "sharing" if shares(config) else "exact"
    text = f"{name}: {len(typed)} of {len(nodes)} GPU nodes have one GRES type for each GPU{rest}"
    return RolloutStep(name, text)


def shares(config: Mapping[str, str]) -> bool:
    """Tells whether slurm.conf has all that `berth migrate apply --rung sharing` writes, literally or implied.

    >>> calls = {"Prolog[0]": "/opt/berth/bin/berth-prolog", "Epilog": "/opt/berth/bin/berth-epilog"}
    >>> shares({**calls, "PrologFlags": "Contain", "LaunchParameters": "use_interactive_step"}), shares(calls)
    (True, False)
    """
    called = {(key.partition("[")[0], path.rpartition("/")[2]) for key, path in config.items()}
    scripts = {("Prolog", "berth-prolog"), ("Epilog", "berth-epilog")} <= called
    flags, launch = (set(config.get(key, "").lower().split(",")) for key in ("PrologFlags", "LaunchParameters"))
    return scripts and bool(flags & _ALLOC) and "use_interactive_step" in launch


def plugins(config: Mapping[str, str]) -> list[str]:
    """Returns the names in JobSubmitPlugins."""
    return [name.removeprefix("job_submit/") for name in config.get("JobSubmitPlugins", "").split(",")]
