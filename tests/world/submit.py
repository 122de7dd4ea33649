# SPDX-License-Identifier: Apache-2.0
"""Jobs as users submit them, and what the plugin makes of a reply: slurm_plugins/job_submit/apply.c in short."""

from __future__ import annotations

from collections.abc import Mapping

from policy.formats import segment, wire
from policy.formats.slurm_syntax import pin_text
from tests.world.cluster import ModelJob

USERS = (1_001, 1_002, 1_003)
KINDS = ("whole", "whole", "gang", "share", "share", "host", "guest", "upgrade", "array", "cpu", "nodelist", "alloc",
         "retry", "begin", "held", "share-array", "share-memory", "share-memory-array", "movable", "range")  # fmt: skip
TIERS = {
    "host": "guaranteed",
    "host-mps": "guaranteed,mps",
    "guest": "opportunistic",
    "guest-mps": "opportunistic,mps",
    "upgrade": "opportunistic,upgrade",
    "upgrade-mps": "opportunistic,upgrade,mps",
}
"""Kinds of hosts and guests: what their users ask for with --gpu-tier."""
FATES = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")


def asked(  # noqa: PLR0912 - a table
    number: int, kind: str, size: int, work: int, fate: str, now: int
) -> tuple[ModelJob, dict[str, str]]:
    """A job as its user asks for it, and the request that the plugin makes of it."""
    k, n = 1 + size % 4, 1
    user = USERS[number % len(USERS)]
    fields = {
        "nonce": f"{number:016x}",
        "uid": str(user),
        "client": "batch",
        "time_limit": "60",
        "name": f"job{size % 3}",
    }
    job = ModelJob(number, user, f"job{size % 3}", n, k, "whole", work, fate, submitted=now, priority=1_000 + size % 5)
    if kind == "cpu":
        job.kind, job.k, job.cpus = "cpu", 0, 1 + size % 8
        return job, {}
    if kind == "gang":
        n, k = 2 + size % 2, 1 + size % 4
        job.n, job.k, job.cpus = n, k, n
        fields |= {"tres_per_node": f"gres/gpu:{k}", "min_nodes": str(n), "max_nodes": str(n)}
        if number % 2:
            # Of the others Slurm may choose the GPUs of each node, where no set is free on all.
            fields["num_tasks"] = str(n)
        job.tres_per_node = f"gres/gpu:{k}"
    elif kind == "range":
        job.kind = kind
        fields |= {"tres_per_node": f"gres/gpu:{k}", "min_nodes": "1", "max_nodes": str(2 + size % 3)}
        job.tres_per_node = f"gres/gpu:{k}"
    elif kind.startswith("share"):
        job.kind, job.k, job.share = "share", 1, (20, 30, 50, 70, 100)[size % 5]
        if "memory" in kind:
            job.share, job.gpu_mem = (1, 40, 60)[size % 3], (700, 4_000, 7_168, 8_000, 16_384)[size % 5]
            fields["flag.gpu_mem"] = f"{job.gpu_mem}M"
        fields |= {"tres_per_job": "gres/gpu:1", "flag.gpu_share": str(job.share)}
        job.tres_per_job = "gres/gpu:1"
    elif kind in TIERS:
        # Under MPS only hosts with one GPU have a guest.
        job.kind, job.k = ("host", 1 if kind == "host-mps" and size % 3 else k) if "host" in kind else ("guest", 1)
        fields |= {"tres_per_job": f"gres/gpu:{job.k}", "flag.gpu_tier": TIERS[kind]}
        job.tres_per_job = fields["tres_per_job"]
        if "host" in kind and number % 4:
            # Of the others nobody knows what they need, and no guest joins them.
            fields["flag.gpu_mem"] = f"{2_048 * (1 + number % 3)}M"
    else:
        fields |= {"tres_per_job": f"gres/gpu:{k}"}
        job.tres_per_job = f"gres/gpu:{k}"
    job.gpus = job.n * job.k
    if kind != "range":
        fields["gpus"] = str(job.gpus)
    if "array" in kind:
        count, limit = 2 + size % 4, size % 3
        job.array, job.tasks, job.at_once = number, list(range(count)), limit
        fields["array"] = f"0-{count - 1}" + (f"%{limit}" if limit else "")
    if kind == "nodelist":
        job.user_nodes = job.req_nodes = fields["req_nodes"] = f"n{1 + size % 3}"
    if kind == "alloc":
        fields["client"], job.has_script, job.requeue = "alloc", False, False
    if kind == "retry":
        fields["flag.retry"] = "2"
    if kind == "movable":
        fields["flag.movable"] = "0:10"
    if kind == "begin":
        job.begin = job.user_begin = now + 30 + 10 * (size % 10)
        fields["begin"] = str(job.begin)
    if kind == "held":
        job.priority, job.user_hold, job.reason = 0, True, "JobHeldUser"
        fields["held"] = "1"
    return job, fields


def apply(job: ModelJob, fields: Mapping[str, str], reply: bytes | None) -> bool:
    """Write a reply into the job; False where its user is told that it can never run."""
    if not fields:
        return True
    if reply is None:
        _keep(job, fields)
        return True
    message = wire.decode(reply)
    said, verb = message.fields, message.verb
    if verb == "refuse":
        return False
    if verb == "busy":
        _keep(job, fields)
        return True
    assert said["nonce"] == fields["nonce"], "berthd answers another request"
    if verb == "pass":
        job.admin_comment = f"[berth/1 {said['segment']}]"
        return True
    guest, share = "guest" in said, int(said.get("share", "0"))
    job.admin_comment = segment.put(job.admin_comment, segment.fields(f"[berth/1 {said['segment']}]") or {})
    if verb == "later":
        _lay(job, job.gpus // int(said["k"]))
        job.tres_per_job, job.tres_per_node = "", f"gres/gpu:{said['k']}"
        if guest:
            job.requeue = True
            job.begin = max(job.begin, int(said["begin"]))
        return True
    nodes, gpus = said["nodes"].split(","), said["gpus"].split(",")
    whole = ("gpu", "seat") if said["seats"] == "1" else ("gpu",)
    kinds = ("seat",) if guest else ("shard",) if share else whole
    by_job = not job.has_script and not share
    text = pin_text.tres_text(kinds, gpus, share or (len(nodes) if by_job else 1))
    job.tres_per_job, job.tres_per_node = (text, "") if by_job else ("", text)
    job.req_nodes = ",".join(nodes)
    job.exc_nodes = said.get("exc_nodes", job.exc_nodes)
    _lay(job, len(nodes))
    more = {} if share or "way" not in said else {"tier": "opportunistic" if guest else "guaranteed"}
    if share and job.share < share:
        said = {**said, "asked_share": str(job.share)}
    more |= {key: said[key] for key in ("share", "asked_share", "mem", "way") if key in said}
    job.extra = pin_text.extra_text(job.extra, nodes, said["gpus"], more)
    job.licenses = said.get("licenses", job.licenses)
    if guest:
        job.requeue = True
    return True


def _lay(job: ModelJob, nodes: int) -> None:
    """berthd may lay a job that names no number of nodes on several."""
    if job.kind == "range":
        job.gpus = nodes * job.k
    job.n, job.k, job.cpus = nodes, job.gpus // nodes, max(job.cpus, nodes)


def _keep(job: ModelJob, fields: Mapping[str, str]) -> None:
    """Returns what the plugin writes where berthd does not answer."""
    words = [f"{key}:{fields[key]}" for key in ("tres_per_job", "tres_per_node", "req_nodes") if key in fields]
    flags = {f"f.{key[5:].replace('_', '-')}": value for key, value in fields.items() if key.startswith("flag.")}
    values = {"state": "passed", "asked": ";".join(words), "why": "berthd does not answer", **flags}
    job.admin_comment = segment.put(job.admin_comment, values)
