# SPDX-License-Identifier: Apache-2.0
"""Ends a campaign: writes the score table anew, and prints what changed."""

import time
from collections.abc import Sequence
from pathlib import Path

from policy.calibrate.campaign import Campaign
from topology.scores import Score, dump

_WORTH = 0.01
"""The smallest change of a score that gets a line."""
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
    for line in differences(old, new):
        print(line)
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


def differences(old: Sequence[Score], new: Sequence[Score]) -> list[str]:
    """Returns lines on what differs between two tables, the greatest change first."""
    before = {(one.node, one.position, one.uuid, one.app_class): one.score for one in old}
    known = [(one, before.get((one.node, one.position, one.uuid, one.app_class))) for one in new]
    moved = [(one, was) for one, was in known if was is not None and abs(one.score - was) >= _WORTH]
    moved.sort(key=lambda pair: -abs(pair[0].score - pair[1]))
    lines = [f"{one.node} GPU {one.position}: {one.app_class} {was:.3f} -> {one.score:.3f}" for one, was in moved]
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"and {len(lines) - _LINES} more scores changed by {_WORTH:.0%} or more"]
    if first := sum(was is None for _, was in known):
        lines.append(f"{first} scores are new")
    return lines


def merged(old: Sequence[Score], new: Sequence[Score]) -> list[Score]:
    """Returns the new scores, and the old ones of GPUs without a run, such as imported ones."""
    places = {(one.node, one.position) for one in new}
    uuids = {one.uuid for one in new}
    kept = [one for one in old if (one.node, one.position) not in places and one.uuid not in uuids - {""}]
    return [*new, *kept]
