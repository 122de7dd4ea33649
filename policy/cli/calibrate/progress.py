"""Shows a campaign to the admin: a live table on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rich.live import Live
    from rich.table import Table

    from policy.calibrate.campaign import Campaign, NodeState

_ROWS = 16
_ORDER = ("running", "failed", "waiting", "done")


class CampaignProgress:
    """Shows a campaign while it lasts."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Starts the display; a live table needs a terminal."""
        if sys.stdout.isatty():
            from rich.live import Live  # noqa: PLC0415 - heavy, and only here

            self._live = Live(refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the last state on the screen."""
        if self._live:
            self._live.stop()

    def event(self, campaign: Campaign, node: str) -> None:
        """Prints that something happened to a node, where there is no live table."""
        if not self._live:
            one = campaign.nodes[node]
            told = f": {one.told}" if one.told and one.state != "running" else ""
            print(f"{_clock(time.time())} {node} {_state(one)}{told} ({_counts(campaign)})", flush=True)

    def show(self, campaign: Campaign, why: str) -> None:
        """Shows the state of all nodes, and what the campaign waits for."""
        if self._live:
            self._live.update(_table(campaign, why))


def _state(one: NodeState) -> str:
    return "made way" if one.state == "waiting" and one.made_way and not one.tries else one.state


def _counts(campaign: Campaign) -> str:
    return f"{campaign.count('done')} of {len(campaign.nodes)} done"


def _table(campaign: Campaign, why: str) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"calibration, {_counts(campaign)}", caption=why or None)
    for column in ("node", "state", "since", "tries", "made way", "told"):
        table.add_column(column)
    rows = sorted(campaign.nodes.items(), key=lambda row: (_ORDER.index(row[1].state), -row[1].started, row[0]))
    for name, one in rows[:_ROWS]:
        since = _clock(one.started) if one.started else ""
        table.add_row(name, one.state, since, str(one.tries or ""), str(one.made_way or ""), one.told)
    if len(rows) > _ROWS:
        table.add_row(f"{len(rows) - _ROWS} more", "", "", "", "", "")
    return table


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
