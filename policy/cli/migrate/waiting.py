# SPDX-License-Identifier: Apache-2.0
"""Rewrites the requests of waiting jobs that name a model in a form that the layout in force does not have.

On the exact layout `gpu:h100:2` names a GRES type that no node has; the job gets `gpu:2` and the feature `h100`. Back
on the plain layout a feature that no node has any more becomes a type again. A licence that slurm.conf does not have
any more is removed; slurmctld 26.05 holds such jobs at its start, so they are released.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policy.cli.migrate.node_lines import ListedNode
from policy.request.counted import change, ours
from policy.slurm.by_command.text import records

_REQUESTS = ("TresPerNode", "TresPerJob", "TresPerSocket", "TresPerTask")
_TYPED = re.compile(r"((?:gres[:/])?gpu):(?!g\d{1,2}\b)([A-Za-z_][\w.-]*)(?=[:=,]|$)")
_HELD = re.compile(r"License_request_'([^']*)'_is_no_longer_valid,_holding_job")
"""slurmctld's reason for jobs that it holds itself; a job that was held before does not get it."""
_COUNT = re.compile(r"((?:gres[:/])?gpu)(?=[:=]\d|,|$)")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The change of one waiting job, and the commands that write it, in order."""

    job: str
    commands: tuple[tuple[str, ...], ...]


def rewrites(shown: str, nodes: Mapping[str, ListedNode], licenses: str) -> Iterator[Rewrite]:
    """Yields the changes, from `scontrol show job --oneliner`; `nodes` and `licenses` are those of slurm.conf now."""
    exact = {feature for node in nodes.values() if node.exact for feature in node.features}
    features = {feature for node in nodes.values() for feature in node.features}
    types = {model for node in nodes.values() for model in node.models}
    counted = ours(licenses)
    for values in records(shown, "JobId"):
        if values.get("JobState") != "PENDING":
            continue
        words = list(_request(values, exact, features, types))
        held = values.get("Licenses", "(null)")
        rest = change(held, {name: count for name, count in ours(held).items() if name in counted})
        words += [f"Licenses={rest}"] if rest is not None else []
        reason = _HELD.fullmatch(values.get("Reason", ""))
        gone = reason is not None and any(name not in counted for name in ours(reason[1]))
        number = _number(values)
        commands = [("scontrol", "update", f"JobId={number}", *words)] if words else []
        # slurmctld holds a job whose licence is gone.
        commands += [("scontrol", "release", number)] if gone else []
        if commands:
            yield Rewrite(number, tuple(commands))


def _request(values: Mapping[str, str], exact: set[str], features: set[str], types: set[str]) -> Iterator[str]:
    constraint = values.get("Features", "(null)").replace("(null)", "")
    asked = {key: values[key] for key in _REQUESTS if "gpu" in values.get(key, "")}
    models = {model for text in asked.values() for _, model in _TYPED.findall(text)}
    if len(models) == 1 and models <= exact:
        (model,) = models
        for key, text in asked.items():
            yield "=".join((key, _TYPED.sub(r"\1", text)))
        if model not in re.split(r"[&,|()\[\]*]", constraint):
            # A comma or an & joins features; an expression with other signs has its own brackets.
            yield f"Features={f'{constraint}&' if constraint else ''}{model}"
    elif re.fullmatch(r"[\w.-]+([&,][\w.-]+)*", constraint) and not models:
        named = re.split(r"[&,]", constraint)
        lost = [name for name in named if name not in features and name in types]
        if len(lost) == 1:
            for key, text in asked.items():
                yield "=".join((key, _COUNT.sub(rf"\1:{lost[0]}", text)))
            yield f"Features={'&'.join(name for name in named if name not in lost)}"


def _number(values: Mapping[str, str]) -> str:
    """Returns Slurm's name for the waiting part of a job, without tasks that run."""
    array, tasks = values.get("ArrayJobId"), values.get("ArrayTaskId")
    if array and tasks:
        tasks = tasks.partition("%")[0]
        return f"{array}_{tasks}" if tasks.isdigit() else f"{array}_[{tasks}]"
    return values["JobId"]
