# SPDX-License-Identifier: Apache-2.0
"""Ends a campaign: writes the score table anew, and prints what changed."""

import time
from collections.abc import Sequence
from pathlib import Path

from policy.calibrate.campaign import Campaign
from topology.scores import Score, dump

_LINES = 20


def report(campaign: Campaign, runs: Path, scores: Path | None) -> None:
    """Writes the table and prints a summary."""
    from topology.calibrate.health import watch_list  # noqa: PLC0415
    from topology.calibrate.runs import load  # noqa: PLC0415
    from topology.calibrate.statistics import calibrate, table  # noqa: PLC0415
    from topology.scores import load as load_scores  # noqa: PLC0415

    made_way = sum(one.made_way for one in campaign.nodes.values())
    left = len(campaign.nodes) - campaign.count("done") - campaign.count("failed")
    print(
        f"{campaign.count('done')} nodes measured, {campaign.count('failed')} failed, {left} left; "
        f"made way {made_way} times"
    )
    for name, one in campaign.nodes.items():
        if one.state == "failed":
            print(f"{name} failed: {one.told}")
    if not runs.exists():
        return
    calibration = calibrate(load(runs), time.time())
    old = load_scores(scores) if scores and scores.exists() else ()
    new = merged(old, table(calibration.estimates))
    for change in calibration.changes:
        print(change)
    for watched in watch_list(calibration)[:_LINES]:
        who = watched.node if watched.position is None else f"{watched.node} GPU {watched.position}"
        print(f"{who}: {watched.advice}: {watched.evidence}")
    if scores is None:
        print("no score table written: let [berthd] scores in berth.conf name one, or use --scores")
        return
    dump(new, scores)
    print(f"{scores} written: {len(new)} scores")


def merged(old: Sequence[Score], new: Sequence[Score]) -> list[Score]:
    """Returns the new scores, and the old ones of GPUs without a run, such as imported ones."""
    places = {(one.node, one.position) for one in new}
    uuids = {one.uuid for one in new}
    kept = [one for one in old if (one.node, one.position) not in places and one.uuid not in uuids - {""}]
    return [*new, *kept]
