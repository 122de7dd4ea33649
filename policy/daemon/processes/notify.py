# SPDX-License-Identifier: Apache-2.0
"""Notifies systemd of berthd's state (sd_notify), if systemd asks for it."""

import os
import socket


def notify(state: str) -> None:
    """Sends one line such as READY=1; does nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            # If the service manager is gone, berthd goes on placing jobs.
            return


def watchdog_seconds() -> float | None:
    """Returns the seconds between two signs of life for systemd: half of its limit, as its manual advises."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdigit() and int(microseconds) else None
