# SPDX-License-Identifier: Apache-2.0
"""Writes into Slurm: pins, releases, evictions, second tries, the list of pinned jobs."""
