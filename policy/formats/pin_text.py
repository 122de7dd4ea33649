"""The text of a pin in a job's Extra and request, within the length that Slurm takes.

The plugin writes the same text at submission (slurm_plugins/pin/pin_text.c).
"""

from collections.abc import Iterable, Mapping, Sequence

from policy.formats import hostlist, segment
from policy.formats.errors import TooLong
from policy.formats.wire import number

MOST_BYTES = 1_024
"""Most bytes of an Extra or TRES text: Slurm refuses a submission or update with a longer one as a whole."""


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


def check(reply: Mapping[str, str], request: Mapping[str, str]) -> None:
    """Raises TooLong if the plugin could not write the place of a reply into the job of a request."""
    # Of the user's own text only the length is known, and that may be any number.
    own_bytes = number(request, "extra_bytes") or 0
    if not surely_fits(reply, own_bytes):
        _check_texts(reply, request, own_bytes)


def surely_fits(reply: Mapping[str, str], own_bytes: int) -> bool:
    """Tells whether a place is so short that its texts need not be made to see that they fit: nearly all are.

    A byte of a node's name is at most 12 when it is escaped, a GPU with its comma 22 in each of two TRES; all else in
    the Extra has at most 100.
    """
    return own_bytes + 12 * len(reply["nodes"]) + 22 * (len(reply["gpus"]) + 1) + 100 <= MOST_BYTES


def _check_texts(reply: Mapping[str, str], request: Mapping[str, str], own_bytes: int) -> None:
    guest, share = "guest" in reply, int(reply.get("share", "0"))
    tier = {} if share or "way" not in reply else {"tier": "opportunistic" if guest else "guaranteed"}
    asked = request.get("flag.gpu-share", request.get("flag.gpu_share", ""))
    less = {"asked_share": asked} if asked.isdigit() and 0 < int(asked) < share else {}
    more = {**tier, **less, **{key: reply[key] for key in ("share", "mem", "way") if key in reply}}
    nodes, gpus = reply["nodes"].split(","), reply["gpus"]
    _values_that_fit(own_bytes, nodes, gpus, more)
    whole = ("gpu", "seat") if reply["seats"] == "1" else ("gpu",)
    kinds = ("seat",) if guest else ("shard",) if share else whole
    by_job = request.get("client") != "batch" and not share
    tres_text(kinds, gpus.split(","), share or (len(nodes) if by_job else 1))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
