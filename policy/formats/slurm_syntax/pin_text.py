# SPDX-License-Identifier: Apache-2.0
"""The text of a pin in a job's Extra and request, within the length that Slurm takes.

The plugin writes the same text at submission (slurm_plugins/pin/pin_text.c).
"""

from collections.abc import Iterable, Mapping, Sequence

from policy.formats import hostlist, segment
from policy.formats.errors import TooLong
from policy.formats.reply import MOST_BYTES, Reply


def extra_text(own: str, nodes: Sequence[str], gpus: str, more: Mapping[str, str]) -> str:
    """Returns a job's Extra with its place in it; nodes are folded only if their names would not fit."""
    return segment.put(own, _values_that_fit(_bytes(segment.remove(own)), nodes, gpus, more))


def _values_that_fit(own_bytes: int, nodes: Sequence[str], gpus: str, more: Mapping[str, str]) -> dict[str, str]:
    """Returns the segment's values, folded if needed to fit beside the user's own bytes."""
    plain = {"nodes": ",".join(nodes), "gpus": gpus, **more}
    if own_bytes + _bytes(segment.put("", plain)) <= MOST_BYTES:
        return plain
    folded = {"nodes": hostlist.fold(nodes), "gpus": gpus, **more}
    whole = own_bytes + _bytes(segment.put("", folded))
    if whole > MOST_BYTES:
        raise TooLong(
            f"with the place in it the job's Extra has {whole} bytes, and Slurm takes {MOST_BYTES}"
            f"{'; a shorter --extra would do' if own_bytes else ''}"
        )
    return folded


def tres_text(kinds: Iterable[str], gpus: Iterable[int | str], count: int) -> str:
    """Returns the request for exactly these GPUs."""
    text = ",".join(f"gres/{kind}:g{gpu}:{count}" for kind in kinds for gpu in gpus)
    if len(text) > MOST_BYTES:
        raise TooLong(f"a request for these GPUs one by one has {len(text)} bytes, and Slurm takes {MOST_BYTES}")
    return text


def check(reply: Reply, own_bytes: int, asked_share: str, *, batch: bool) -> None:
    """Raises TooLong if the plugin could not write the place of a reply into its job, beside the user's own bytes."""
    gpus = ",".join(map(str, reply.gpus))
    tier = {} if reply.share or not reply.way else {"tier": "opportunistic" if reply.guest else "guaranteed"}
    less = {"asked_share": asked_share} if asked_share.isdigit() and 0 < int(asked_share) < reply.share else {}
    share = {"share": str(reply.share)} if reply.share else {}
    mem = {} if reply.gpu_mem is None else {"mem": str(reply.gpu_mem)}
    way = {"way": reply.way} if reply.way else {}
    _values_that_fit(own_bytes, reply.nodes, gpus, {**tier, **less, **share, **mem, **way})
    whole = ("gpu", "seat") if reply.seats else ("gpu",)
    kinds = ("seat",) if reply.guest else ("shard",) if reply.share else whole
    by_job = not batch and not reply.share
    tres_text(kinds, reply.gpus, reply.share or (len(reply.nodes) if by_job else 1))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
