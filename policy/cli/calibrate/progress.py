"""Says what happens in a campaign: a line for each event, and one when the campaign begins to wait for something."""

import time

from policy.calibrate.campaign import Campaign, NodeState


class CampaignProgress:
    """Prints the lines of one campaign."""

    def __init__(self) -> None:
        self._why = ""

    def event(self, campaign: Campaign, node: str) -> None:
        """Prints that something happened to a node."""
        one = campaign.nodes[node]
        told = f": {one.told}" if one.told and one.state != "running" else ""
        _say(f"{node} {_state(one)}{told} ({campaign.count('done')} of {len(campaign.nodes)} done)")

    def waits(self, why: str) -> None:
        """Prints what the campaign waits for, once; an empty text: for nothing."""
        if why and why != self._why:
            _say(why)
        self._why = why


def _state(one: NodeState) -> str:
    return "made way" if one.state == "waiting" and one.made_way and not one.tries else one.state


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
