# SPDX-License-Identifier: Apache-2.0
"""Makes the configuration of a rung from the present configuration: pure functions on texts.

The rungs are those of docs/admin/rollout.md. A site goes up by applying a rung, and down by undoing one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from policy.cli.doctor.model_limits import BY_MODEL
from policy.cli.doctor.steps import shares
from policy.cli.migrate import berth_conf
from policy.cli.migrate.conf_text import add_words, entries, set_value, value_of, values_of, words_of
from policy.cli.migrate.node_lines import ExactNode, ListedNode, exact_gres, exact_nodes, listed, sorted_nodes
from policy.formats.errors import UsageError
from policy.request.counted import PREFIX, ours

Rung: TypeAlias = Literal["observe", "advise", "exact", "sharing"]
RUNGS: tuple[Rung, ...] = ("observe", "advise", "exact", "sharing")

PROGRAMS = "/opt/berth/bin"
_COUNTED_IN = ("TRESBillingWeights", "AccountingStorageTRES", "PriorityWeightTRES")
_OF_SHARING = ("Prolog", "Epilog", "PrologFlags", "LaunchParameters")


@dataclass(frozen=True, slots=True)
class Texts:
    """A site's configuration; a file that does not exist is an empty text."""

    slurm_conf: tuple[str, ...]
    """slurm.conf, then the files that it includes."""
    gres_conf: str = ""
    plugstack_conf: str = ""
    berth_conf: str = ""
    spank_elsewhere: bool = False
    """True if a file that plugstack.conf includes loads the SPANK plugin."""

    @property
    def nodes(self) -> dict[str, ListedNode]:
        """The nodes with GPUs, as slurm.conf lists them."""
        return {name: node for name, node in listed(self.slurm_conf).items() if node.gpus}


def rung_of(texts: Texts) -> Rung:
    """Returns the rung that a configuration is on."""
    nodes = texts.nodes.values()
    if any(node.exact for node in nodes):
        # A site's own scripts are called by Berth's from the exact layout on; sharing needs more.
        return "sharing" if shares({key: value_of(texts.slurm_conf, key) for key in _OF_SHARING}) else "exact"
    return "advise" if "berth" in _plugin_names(texts.slurm_conf) else "observe"


def changed(
    texts: Texts, rung: Rung, wanted: Mapping[str, ExactNode] = MappingProxyType({}), limited: Iterable[str] = ()
) -> Texts:
    """Returns the configuration of a rung; parts that are right already stay as they are, byte for byte.

    `wanted` are the nodes that get one GRES type for each GPU, `limited` the models that limits in slurmdbd name.
    """
    present = rung_of(texts)
    if rung == "advise" and present in ("exact", "sharing"):
        raise UsageError(f"the rung in force is {present}; berth migrate undo goes back")
    if rung == "sharing" and present not in ("exact", "sharing"):
        raise UsageError("sharing needs the exact layout; apply exact first")
    texts = _plugins(texts)
    if rung == "advise":
        return replace(texts, berth_conf=berth_conf.set_key(texts.berth_conf, "hook", "layout", '"plain"'))
    if rung == "exact":
        return _exact(texts, wanted, limited)
    return _scripts(texts, all_nodes=True)


def _plugin_names(texts: Sequence[str]) -> list[str]:
    return [word.removeprefix("job_submit/") for word in words_of(value_of(texts, "JobSubmitPlugins"))]


def names_spank(text: str) -> bool:
    """Tells if a plugstack file loads Berth's SPANK plugin, which must not be loaded twice."""
    return bool(re.search(r"^[ \t]*(optional|required)[ \t]+\S*spank_berth\.so", text, re.MULTILINE))


def _plugins(texts: Texts) -> Texts:
    """Adds the plugins: job_submit/berth as the last one, so that it sees what others have changed."""
    conf: Sequence[str] = texts.slurm_conf
    if _plugin_names(conf)[-1:] != ["berth"]:
        names = words_of(value_of(conf, "JobSubmitPlugins"))
        others = [name for name in names if name.removeprefix("job_submit/") != "berth"]
        conf = set_value(conf, "JobSubmitPlugins", ",".join([*others, "berth"]))
    if "cli_filter/berth" not in words_of(value_of(conf, "CliFilterPlugins")):
        conf = add_words(conf, "CliFilterPlugins", "berth")
    plugstack = texts.plugstack_conf
    if not texts.spank_elsewhere and not names_spank(plugstack):
        gap = "" if not plugstack or plugstack.endswith("\n") else "\n"
        plugstack = f"{plugstack}{gap}optional spank_berth.so\n"
    return replace(texts, slurm_conf=tuple(conf), plugstack_conf=plugstack)


def _exact(texts: Texts, wanted: Mapping[str, ExactNode], limited: Iterable[str]) -> Texts:
    before, berth = texts.nodes, texts.berth_conf
    conf: Sequence[str] = exact_nodes(texts.slurm_conf, wanted)
    conf = add_words(conf, "GresTypes", "gpu", "shard", "seat")
    conf = add_words(conf, "SchedulerParameters", "disable_job_shrink")
    conf = _licences(conf, before, limited)
    if berth_conf.value_of(berth, "hook", "layout") == "plain":
        berth = berth_conf.set_key(berth, "hook", "layout", '"exact"')
    gres = exact_gres(texts.gres_conf, sorted_nodes(before), wanted)
    # With one type for each GPU, Slurm names only a job's last GPU to a Prolog; Berth's own names all to it.
    return _scripts(replace(texts, slurm_conf=tuple(conf), gres_conf=gres, berth_conf=berth), all_nodes=False)


def _licences(texts: Sequence[str], nodes: Mapping[str, ListedNode], limited: Iterable[str]) -> Sequence[str]:
    """Counts models by licences wherever a weight, a limit or the accounting names them (docs/admin/slurm.md)."""
    named = set(limited)
    changed_texts = []
    for text in texts:
        lines = []
        for entry in entries(text):
            line = entry
            for key in _COUNTED_IN:
                value = line.get(key) or ""
                if found := BY_MODEL.findall(value):
                    named.update(found)
                    line = line.with_value(BY_MODEL.sub(rf"license/{PREFIX}\1", value), key)
            lines.append(line.raw)
        changed_texts.append("".join(lines))
    models = sorted(named)
    if not models:
        return texts
    # A limit can name a TRES only if it is tracked, and gres/gpu stays tracked where the models were.
    tracked = ("gres/gpu", *(f"license/{PREFIX}{one}" for one in models))
    changed_texts = add_words(changed_texts, "AccountingStorageTRES", *tracked)
    present = ours(value_of(changed_texts, "Licenses"))
    counts = {model: sum(_count(node, model) for node in nodes.values()) for model in models}
    added = [f"{PREFIX}{model}:{count}" for model, count in counts.items() if count and PREFIX + model not in present]
    return add_words(changed_texts, "Licenses", *added)


def _count(node: ListedNode, model: str) -> int:
    """Returns the GPUs of a model on a node, by the type of its GPUs or, where these have none, by its features."""
    if model in node.gpus:
        return node.gpus[model]
    return sum(node.gpus.values()) if model in node.features and not node.models else 0


def _scripts(texts: Texts, *, all_nodes: bool) -> Texts:
    """Sets Berth's Prolog and Epilog in place of the site's own, which they then call; with `all_nodes` in any case."""
    conf, berth = texts.slurm_conf, texts.berth_conf
    for key, program in (("Prolog", "berth-prolog"), ("Epilog", "berth-epilog")):
        own = values_of(conf, key)
        if any(program in path for path in own) or not (own or all_nodes):
            continue
        if own:
            chained = ", ".join(f'"{path}"' for path in own)
            berth = berth_conf.set_key(berth, "node", f"chain_{key.lower()}", f"[{chained}]")
        # Newer Slurms take several Prologs.
        conf = tuple(set_value(conf, key, f"{PROGRAMS}/{program}", alone=True))
    if all_nodes:
        conf = tuple(add_words(conf, "PrologFlags", "Alloc"))
        conf = tuple(add_words(conf, "LaunchParameters", "use_interactive_step"))
    return replace(texts, slurm_conf=conf, berth_conf=berth)
