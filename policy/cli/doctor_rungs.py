"""Tells how far a site has gone with Berth (docs/rollout.md), since doctor asks for other things at each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from policy.cluster.untyped import untyped
from policy.formats.slurm_facts import NodeFacts

Step: TypeAlias = Literal["observe", "advise", "exact"]


@dataclass(frozen=True, slots=True)
class Rung:
    """The step that is in force, and what is wrong with it; an empty text where nothing is."""

    step: Step
    text: str
    wrong: str = ""


def rung_of(config: Mapping[str, str], nodes: Sequence[NodeFacts], *, plain: bool) -> Rung:
    """Returns the step of a site; `plain` is what `[hook] layout` says."""
    loose = untyped(nodes)
    typed = [node for node in nodes if node.gpus]
    if plain:
        wrong = f'{some(typed)}: each GPU has a type of its own there; write layout = "exact"' if typed else ""
        return Rung("advise", "advise: Slurm chooses nodes and GPUs, and is asked for linked pairs", wrong)
    if "berth" not in plugins(config) and not typed:
        return Rung("observe", "observe: Slurm runs without Berth; berth observe shows what would be better")
    if loose and not typed:
        wrong = 'no GPU has a type of its own; write layout = "plain" into [hook], or lay them out: berth topo export'
        return Rung("exact", "", wrong)
    on_the_way = f"; on {some(loose)} Slurm alone chooses, and each needs its model as a feature" if loose else ""
    return Rung("exact", f"exact: {len(typed)} of {len(nodes)} GPU nodes have one GRES type for each GPU{on_the_way}")


def plugins(config: Mapping[str, str]) -> list[str]:
    """Returns the names in JobSubmitPlugins."""
    return [name.removeprefix("job_submit/") for name in config.get("JobSubmitPlugins", "").split(",")]


def some(nodes: Sequence[NodeFacts]) -> str:
    """Names the first nodes."""
    names = [node.name for node in nodes]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
