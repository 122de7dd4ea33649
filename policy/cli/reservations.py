# SPDX-License-Identifier: Apache-2.0
"""The form of a reservation of GPUs for the exact layout."""

from collections.abc import Collection, Iterable, Iterator

from policy.formats.hostlist import fold
from policy.formats.slurm_facts import Reservation


def counting(reservations: "Iterable[Reservation]", exact: Collection[str]) -> Iterator[str]:
    """Yields a sentence for each reservation that counts GPUs of nodes with the exact layout, and names none."""
    for one in reservations:
        named = sum(count for kind, count in one.gpus if kind.removeprefix("g").isdigit())
        here = [node for node in one.nodes if node in exact]
        if here and dict(one.gpus).get("", 0) > named:
            yield (
                f"reservation {one.name} counts GPUs of {fold(here)}: Berth places no job there while it lasts, and"
                " Slurm gives the GPUs that it leaves. Name the GPUs instead, of one socket in each reservation, such"
                " as TresPerNode=gres/gpu:g0:1,gres/gpu:g1:1, with these types in AccountingStorageTRES"
            )
