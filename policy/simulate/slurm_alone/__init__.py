"""Simulates Slurm's own scheduler: priorities, the main pass, backfill, and their costs."""
