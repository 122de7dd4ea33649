# SPDX-License-Identifier: Apache-2.0
"""The commands for users and admins; nothing here imports numpy at start."""
