# SPDX-License-Identifier: Apache-2.0
"""`make check-artifact`: PAL's own code asked for each placement of our simulations, and every GPU compared.

BERTH_PAL_ARTIFACT is a checkout of github.com/hal-uw/blox-pal, branch `artifact`; the published traces and scores are
found as in `make bench NAME=published`. The artifact sorts with numpy's default sort, which is unstable where it uses
AVX-512, so run it with NPY_DISABLE_CPU_FEATURES="AVX512F AVX512_SKX" as the make target does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.placement.base import Berth
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import RoundPolicy, in_rounds
from policy.simulate.pal_rounds.rounds import RoundsSettings, run
from tests.bench.placement_speed import ARTIFACT, PalArtifact, its_folder
from tests.bench.published import TRACES
from tests.bench.simulate import data_folder, sia_fleet, sia_trace
from topology.sets.wiring import positions

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.request.demand import Demand

THEIR_CLASS = {"compute": "A", "mixed": "B", "memory": "C", "D": "D"}
CASES = (("pal", False), ("pm_first", False), ("packed", False), ("packed", True))
"""Policy, and whether it is sticky."""


class Checked:
    """A policy whose answers are compared with the artifact's."""

    def __init__(self, policy: RoundPolicy, artifact: PalArtifact, placer: Any) -> None:
        self._ours, self._artifact, self._placer = policy.place_together, artifact, placer
        self.placements = self.different = 0

    def __call__(self, demands: Sequence[Demand], view: View, held: Sequence[Berth | None] = ()) -> list[Berth | None]:
        """In place of `place_together`."""
        ours = self._ours(demands, view, held)
        width = int(view.fleet.size[0])
        free = [bool(int(mask) >> place & 1) for mask in view.free for place in range(width)]
        self._artifact.hold([not one for one in free])
        jobs = [
            TraceJob(str(place), one.k, 0.0, 1.0, one.model, THEIR_CLASS[one.app_class])
            for place, one in enumerate(demands)
        ]
        theirs = self._artifact.place(self._placer, jobs)
        for place, berth in enumerate(ours):
            gpus = sorted(
                node * width + gpu
                for node, mask in (zip(berth.nodes, berth.masks, strict=True) if berth else ())
                for gpu in positions(mask)
            )
            self.placements += 1
            self.different += gpus != sorted(theirs.get(place, []))
        return ours


def main() -> int:
    """Compare, and report; exit status 1 where anything differs."""
    checkout, data = os.environ.get(ARTIFACT), data_folder()
    if not checkout or not data:
        print(f"check-artifact: nothing to compare: {ARTIFACT} and the published data (BERTH_DATA) are needed")
        return 0
    placements = different = 0
    fleet = sia_fleet(data)
    for number in TRACES:
        for name, sticky in CASES:
            artifact = PalArtifact(
                Path(checkout).resolve(), {THEIR_CLASS[one]: table for one, table in fleet.scores.items()}
            )
            policy = in_rounds(create(name.replace("_", "-")), sticky=sticky)
            with its_folder():
                checked = Checked(policy, artifact, artifact.placer(name))
                policy.place_together = checked  # type: ignore[method-assign]
                run(sia_trace(data, number), fleet, policy, RoundsSettings(repeat=2.0))
            placements, different = placements + checked.placements, different + checked.different
            stays = ", sticky" if sticky else ""
            print(f"workload-{number}, {name}{stays}: {checked.placements} placements, {checked.different} different")
    print(f"check-artifact: {placements} placements, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
