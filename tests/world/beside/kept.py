# SPDX-License-Identifier: Apache-2.0
"""Short scripts that told the model from slurmctld until the model was mended."""

from __future__ import annotations

from tests.world.script import Step

_RUNS: list[Step] = [("submit", "typed", 0)]

KEPT: dict[str, list[Step]] = {
    "what a job held is free while its Epilog runs, and its node takes nobody": [
        ("gate", "close", 1), *_RUNS, ("ends", 0, 0), ("submit", "typed", 4), ("gate", "open", 1),
    ],
    "a restart counts at once, and such a job can be changed": [
        ("gate", "close", 1), *_RUNS, ("people", "requeue", 0, "own"), ("gateway", "pin", 0), ("gate", "open", 1),
    ],
    "RequeueExit brings a job back after its Epilog, and without --requeue never": [
        ("gate", "close", 1), *_RUNS, ("ends", 0, 77), ("gateway", "pin", 0), ("gate", "open", 1),
        ("submit", "no-requeue", 0), ("ends", 0, 77),
    ],
    "RequeueExitHold brings it back on hold": [
        *_RUNS, ("ends", 0, 78), ("gateway", "release", 0), ("people", "release", 0, "own"),
        ("update", "StartTime=now", 0, "own"),
    ],
    "an ended job is put back while its Epilog runs": [
        ("gate", "close", 1), *_RUNS, ("ends", 0, 1), ("people", "incomplete", 0, "own"), ("gateway", "requeue", 0),
        ("gate", "open", 1),
    ],
    "a suspended job gives its CPUs and its priority, and keeps its GPUs": [
        *_RUNS, ("people", "suspend", 0, "own"), ("people", "suspend", 0, "own"), ("gateway", "warn", 0),
        ("people", "requeue", 0, "own"), ("people", "release", 0, "own"),
    ],
    "a job that runs may be held": [
        *_RUNS, ("people", "uhold", 0, "own"), ("update", "Priority=2000", 0, "own"), ("people", "requeue", 0, "own"),
    ],
    "texts are written though the begin time is refused": [
        *_RUNS, ("gateway", "delay", 0), ("gateway", "pin", 0), ("gateway", "park", 0),
    ],
    "a list of nodes is written though the licence is refused": [
        ("submit", "held", 0), ("gateway", "pin-unknown-licence", 0), ("gateway", "pin", 0),
    ],
    "GPUs by node and by job must agree": [
        ("submit", "held", 3), ("update", "TresPerNode=gres/gpu:1", 0, "own"),
        ("update", "TresPerNode=gres/gpu:g3:1", 0, "own"), ("gateway", "pin", 0),
    ],
    "the last task of an array keeps the array's record until it starts or is put back": [
        ("submit", "array-typed", 4), ("gateway", "pin", 0), ("people", "requeue", 1, "own"), ("gateway", "evict", 0),
    ],
    "who has ended can be changed no more, and only put back": [
        *_RUNS, ("ends", 0, 0), ("gateway", "annotate", 0), ("gateway", "warn", 0), ("gateway", "evict", 0),
        ("people", "hold", 0, "own"), ("people", "suspend", 0, "own"), ("gateway", "requeue", 0),
    ],
    "a node goes down under a job that may be run again, and under one that may not": [
        *_RUNS, ("submit", "no-requeue", 0), ("node", "down", 1), ("node", "resume", 1), ("node", "resume", 1),
    ],
    "in an INACTIVE partition all is written, and an error is reported": [
        *_RUNS, ("submit", "held", 0), ("partition", "INACTIVE"), ("gateway", "annotate", 0), ("gateway", "pin", 1),
        ("update", "AdminComment=words", 0, "own"), ("people", "release", 1, "own"), ("partition", "UP"),
    ],
    "a run of --requeue=expedite that fails comes back on hold": [
        ("gate", "close", 1), ("submit", "expedite", 0), ("ends", 0, 1), ("gateway", "pin", 0), ("gate", "open", 1),
        ("gateway", "release", 0), ("people", "release", 0, "own"),
    ],
    "and at the front where its Epilog failed as well": [
        ("gate", "fail", 1), ("submit", "expedite", 0), ("ends", 0, 77), ("gateway", "annotate", 0),
        ("gateway", "pin", 0), ("people", "hold", 0, "own"), ("people", "release", 0, "own"), ("gate", "open", 1),
        ("node", "resume", 1), ("ends", 0, 0),
    ],
    "or where its node went down": [
        ("submit", "expedite", 0), ("submit", "nodelist", 4), ("node", "down", 1), ("people", "requeue", 0, "own"),
        ("gateway", "release", 0), ("node", "resume", 1),
    ],
    "an Epilog that fails drains the node": [
        ("gate", "fail", 1), *_RUNS, ("submit", "nodelist", 0), ("ends", 0, 0), ("gate", "open", 1),
        ("node", "resume", 1),
    ],
    "a list of nodes is looked at before GPUs": [
        *_RUNS, ("update", "ReqNodeList=n2 TresPerNode=gres/gpu:g3:1 AdminComment=words Extra=more", 0, "own"),
    ],
}  # fmt: skip
"""By what they showed."""
