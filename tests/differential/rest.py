# SPDX-License-Identifier: Apache-2.0
"""A job that slurmrestd sends, and so libslurm: with the fields that it is given, and none that an option would set."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

_SEND = r"""
export SLURMRESTD_SECURITY=disable_unshare_sysv,disable_unshare_files
parser=$(slurmrestd -d list 2>&1 | grep -o 'v0\.0\.[0-9]*' | sort -V | tail -1)
body=${body//OUT/$out}
reply=$(printf 'POST /slurm/%s/job/submit HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "$parser" "${#body}" "$body" | slurmrestd -a rest_auth/local -s slurmctld -d "$parser" 2>&1)
job=$(grep -o '"job_id": [0-9]*' <<<"$reply" | tail -1 | grep -o '[0-9]*')
if [ "${job:-0}" = 0 ]; then
    grep '"\(error\|description\)": ' <<<"$reply" | sort -u
    exit 1
fi
trap 'scancel -Q "$job"; cat "$out"/* 2>/dev/null; rm -rf "$out"' EXIT
while [ -n "$(squeue -h -j "$job")" ]; do sleep 0.2; done
"""


def commands(fields: Sequence[str], script: str) -> str:
    """What a shell runs to send the job and to wait for its end; each field is `name=value`."""
    job: dict[str, object] = {
        "name": "rest",
        "script": script,
        "environment": ["PATH=/usr/bin:/bin"],
        "current_working_directory": "OUT",
        "standard_output": "OUT/%j",
        "time_limit": {"set": True, "number": 1},
    }
    for field in fields:
        name, _, value = field.partition("=")
        job[name] = int(value) if value.isdecimal() and name not in _TEXTS else value
    return f"body={shlex.quote(json.dumps({'job': job}))}\n{_SEND}"


_TEXTS = frozenset({"nodes", "array"})
