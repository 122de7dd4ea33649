"""Virtual clusters, Philly's word for a group with GPUs of its own, as Slurm's accounts and QOS.

A group's share is the limit of its QOS, which no other QOS preempts. What it runs beyond that runs in one QOS for all
groups, which every group's own QOS preempts: so idle GPUs are lent, and given back when their group needs them.

    >>> plan = read('''
    ... format = "berth-vc/1"
    ... [[vc]]
    ... name = "vision"
    ... gpus = 16
    ... users = ["ann"]
    ... ''', "example")
    >>> plan.clusters[0].gpus, plan.borrow
    (16, 'borrow')
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policy.formats.errors import FormatError, nearest

FORMAT = "berth-vc/1"
_KEYS = ("format", "gpus", "borrow", "exempt", "vc")
_VC_KEYS = ("name", "gpus", "users")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TIME = re.compile(r"(?:\d{1,3}-)?\d{1,3}:\d{2}:\d{2}")
_OWN_PRIORITY = 1_000
"""Priority of the QOS of groups. That for borrowing has 0: a job that may use either starts in its own first."""

_HEAD = r"""#!/bin/sh
# Virtual clusters as accounts and QOS. What was there before is kept in the file that the first line writes.
set -eu
cluster=$(scontrol show config | sed -n 's/^ClusterName *= *//p')
sacctmgr --immediate dump "$cluster" "File=${VC_BACKUP:-accounts-$(date +%Y%m%dT%H%M%S).cfg}"

there() { [ -n "$(sacctmgr --noheader --parsable2 show "$@")" ]; }
set_to() {
    said=$(sacctmgr --immediate modify "$@" 2>&1) && return
    # It is so already.
    case $said in *"Nothing modified"*) ;; *) echo "$said" >&2; exit 1 ;; esac
}
qos() { there qos "$1" format=Name || sacctmgr --immediate add qos "$1"; }
account() {
    there assoc "account=$1" "cluster=$cluster" format=Account ||
        sacctmgr --immediate add account "$1" "cluster=$cluster" "QOS=$2"
}
user() {
    there assoc "account=$1" "user=$2" "cluster=$cluster" format=User ||
        sacctmgr --immediate add user "$2" "account=$1" "cluster=$cluster"
}"""


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """A group."""

    name: str
    gpus: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VirtualClusters:
    """All groups of a cluster."""

    clusters: tuple[VirtualCluster, ...]
    borrow: str = "borrow"
    """The QOS for what is beyond a share; empty: no group gets more than its share."""
    exempt: str = "00:00:00"
    """For how long a borrower runs at least, as Slurm writes times."""


def read(text: str, origin: str) -> VirtualClusters:
    """The plan in a file; `origin` names it in errors."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise FormatError(f"{origin} is no TOML: {problem}; see docs/virtual-clusters.md") from problem
    if content.get("format") != FORMAT:
        raise FormatError(f'{origin} does not say format = "{FORMAT}"; write that as its first line')
    _known(content, _KEYS, origin)
    entries = content.get("vc")
    if not isinstance(entries, list) or not entries:
        raise FormatError(f"{origin} names no virtual cluster; write a [[vc]] for each")
    clusters = tuple(_cluster(entry, f"{origin}, vc {place}") for place, entry in enumerate(entries, 1))
    names = [one.name for one in clusters]
    borrow = (
        _match(content.get("borrow", "borrow"), _NAME, origin, "borrow", "a name")
        if content.get("borrow") != ""
        else ""
    )
    twice = next((name for name in names if names.count(name) > 1 or name == borrow), None)
    if twice:
        raise FormatError(
            f"{origin}: {twice} is there twice; a virtual cluster and the QOS for borrowing need names of their own"
        )
    total, promised = content.get("gpus"), sum(one.gpus for one in clusters)
    if total is not None and _whole(total, origin, "gpus") < promised:
        raise FormatError(
            f"{origin}: the virtual clusters have {promised} GPUs together, the cluster has {total}; lower some"
        )
    exempt = _match(content.get("exempt", "00:00:00"), _TIME, origin, "exempt", "a time such as 00:10:00")
    return VirtualClusters(clusters, borrow, exempt)


def commands(plan: VirtualClusters) -> Iterator[str]:
    """A shell script that makes it so. It may be run again, and takes nothing away."""
    yield from _HEAD.splitlines()
    if plan.borrow:
        yield ""
        yield "# What is beyond a share: lent, and taken back by requeue."
        yield f"qos {plan.borrow}"
        yield f"set_to qos {plan.borrow} set Priority=0 PreemptMode=requeue PreemptExemptTime={plan.exempt}"
    for one in plan.clusters:
        both = f"{one.name},{plan.borrow}" if plan.borrow else one.name
        yield ""
        yield f"qos {one.name}"
        preempt = f" Preempt={plan.borrow}" if plan.borrow else ""
        yield f"set_to qos {one.name} set Priority={_OWN_PRIORITY} GrpTRES=gres/gpu={one.gpus}{preempt}"
        yield f"account {one.name} {both}"
        yield f"set_to account {one.name} cluster=$cluster set Fairshare={one.gpus} QOS+={both} DefaultQOS={one.name}"
        for user in one.users:
            yield f"user {one.name} {user}"


def slurm_conf(plan: VirtualClusters) -> Iterator[str]:
    """The lines that slurm.conf needs."""
    yield "# limits and QOS of the virtual clusters count only where they are enforced"
    yield "AccountingStorageEnforce=associations,limits,qos"
    yield "# add gres/gpu to what is there already"
    yield "AccountingStorageTRES=gres/gpu"
    yield "PriorityType=priority/multifactor"
    yield "# who is within his share goes before who borrows, and among borrowers who has used less"
    yield "PriorityWeightQOS=100000"
    yield "PriorityWeightFairshare=10000"
    if plan.borrow:
        yield "PreemptType=preempt/qos"
        yield "PreemptMode=REQUEUE"
        yield "JobRequeue=1"


def _cluster(entry: Any, where: str) -> VirtualCluster:
    if not isinstance(entry, dict):
        raise FormatError(f"{where} is no table; write [[vc]] and its keys below")
    _known(entry, _VC_KEYS, where)
    users = entry.get("users", [])
    if not isinstance(users, list):
        raise FormatError(f"{where}: users is no list of names")
    return VirtualCluster(
        _match(entry.get("name"), _NAME, where, "name", "a name of small letters, digits, _ . -"),
        _whole(entry.get("gpus"), where, "gpus"),
        tuple(_match(user, _USER, where, "users", "a list of user names") for user in users),
    )


def _known(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in table if key not in keys), None)
    if unknown:
        raise FormatError(f"{where}: there is no key {unknown}{nearest(unknown, keys)}")


def _match(value: Any, pattern: re.Pattern[str], where: str, key: str, what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise FormatError(f"{where}: {key} is {value!r} and not {what}")
    return value


def _whole(value: Any, where: str, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise FormatError(f"{where}: {key} is {value!r} and not a number of GPUs")
    return value
