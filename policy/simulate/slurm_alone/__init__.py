"""Slurm's own scheduler on paper: priorities, the main pass, backfill, and what each costs."""
