# SPDX-License-Identifier: Apache-2.0
"""The figures of the report, one file each: waits, places, use, losses, and ends."""
