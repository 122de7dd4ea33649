"""Writes into Slurm: pins, releases, evictions, second tries, the list of pinned jobs."""
