# SPDX-License-Identifier: Apache-2.0
"""Finds out from a job's comment that another system than Berth is to requeue it.

Such systems are told by users in `--comment`: NVIDIA Mission Control's job recovery by a JSON object with
`auto_resume_mode`, a site's own Epilog or service perhaps by `auto_requeue=3`. They read and rewrite the comment. Berth
only looks for such a word in it, and then leaves the job's retries to them.

    >>> reason_to_leave('{"APS": {"auto_resume_mode": "requeue"}}', ("auto_resume_mode",), put_back=False)
    'its comment leaves that to another system: auto_resume_mode'
"""

import re
from collections.abc import Iterable


def reason_to_leave(comment: str, words: Iterable[str], *, put_back: bool) -> str:
    """Returns why a job's retries are another system's; empty where they are Berth's.

    A word counts that stands in the comment as a word of its own, in capitals or not.
    """
    if put_back:
        return "others put it back into the queue after it failed, and Berth leaves that to them"
    named = (one for one in words if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", comment, re.IGNORECASE))
    return f"its comment leaves that to another system: {name}" if (name := next(named, "")) else ""
