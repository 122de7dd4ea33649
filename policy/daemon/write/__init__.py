# SPDX-License-Identifier: Apache-2.0
"""Writes into Slurm: pins, releases, evictions, retries and the list of pinned jobs."""
