# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and ends berthd's processes, and notifies systemd."""
