# SPDX-License-Identifier: Apache-2.0
"""Requests on the plain layout: jobs with one fixed number of nodes, whose GPU model is a feature of its nodes."""

import re
from collections.abc import Mapping

from policy.formats.errors import LeftToSlurm
from policy.formats.wire import number
from policy.request.constraint import joined
from policy.request.submission import Submission, read

LEFT = 217
"""Number of the message about a job whose nodes Slurm chooses too."""

_BY_MODEL = re.compile(r"(gres/gpu)[:=]([A-Za-z0-9_.\-]*[A-Za-z_.\-][A-Za-z0-9_.\-]*)((?:[:=][0-9]{1,6})?)")
_SLURMS_OWN = (
    ("req_nodes", "its user names the nodes"),
    ("array", "the tasks of an array start apart"),
    ("het", "the parts of a heterogeneous job are settled together"),
    ("flag.gpu-share", "GPUs have no parts on the plain layout"),
    ("flag.gpu-tier", "GPUs have no seats on the plain layout"),
)


def without_model(submission: Submission) -> tuple[Submission, str]:
    """Returns a submission with its GPU model as a feature, and the model; raises LeftToSlurm for other jobs."""
    texts, models = dict(submission.texts), set()
    for key in ("tres_per_job", "tres_per_node", "tres_per_task"):
        if match := _BY_MODEL.fullmatch(texts.get(key, "")):
            texts[key] = match[1] + match[3]
            models.add(match[2])
    if len(models) > 1:
        raise LeftToSlurm("it names several GPU models", LEFT)
    model = next(iter(models), "")
    if model:
        texts["features"] = joined(texts.get("features", ""), model)
    _check(texts)
    return read(texts), model


def _check(texts: Mapping[str, str]) -> None:
    """Raises an error unless the job asks for a fixed number of nodes, and names none."""
    for key, why in _SLURMS_OWN:
        if key in texts:
            raise LeftToSlurm(why, LEFT)
    one_node = (number(texts, "min_nodes") or 1) == 1 and (number(texts, "num_tasks") or 1) == 1
    if not (number(texts, "max_nodes") or one_node):
        raise LeftToSlurm("its number of nodes is Slurm's to settle; say -N", LEFT)
    if "tres_per_job" in texts and not number(texts, "max_nodes"):
        raise LeftToSlurm("Slurm may spread its GPUs over nodes; say -N", LEFT)
