# SPDX-License-Identifier: Apache-2.0
"""Lines as sacct writes them for `berth collect` and `berth report`."""

from __future__ import annotations

from policy.report.rows import COLUMNS


def line(job: str, submit: int, start: int | None, end: int, nodes: str, gpus: int, said: str = "") -> str:
    """Returns the line of one run; `start` None: it never began."""
    values = {
        "JobIDRaw": job,
        "Submit": submit,
        "Eligible": submit,
        "Start": "Unknown" if start is None else start,
        "End": end,
        "ElapsedRaw": 0 if start is None else end - start,
        "State": "CANCELLED by 1000" if start is None else "COMPLETED",
        "ExitCode": "0:0",
        "Reason": "None",
        "NNodes": max(1, nodes.count(",") + 1),
        "TimelimitRaw": 60,
        "User": "ann",
        "Account": "lab",
        "ReqTRES": f"gres/gpu={gpus},node=1",
        "AllocTRES": "" if start is None else f"gres/gpu={gpus}",
        "TRESUsageInTot": "",
        "NodeList": nodes or "None assigned",
        "AdminComment": said,
    }
    return "|".join(str(values[name]) for name in COLUMNS)
