# SPDX-License-Identifier: Apache-2.0
"""Telling systemd how berthd is doing (sd_notify), where systemd asked for it."""

import os
import socket


def notify(state: str) -> None:
    """Send one line such as READY=1; nothing happens without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            # A manager that went away is no reason to stop placing jobs.
            return


def watchdog_seconds() -> float | None:
    """Returns how often systemd wants to hear from us; half of its limit, as its manual advises."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdigit() and int(microseconds) else None
