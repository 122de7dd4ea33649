"""Simulates Slurm with berthd's own planning code beside it, which pins jobs as on a real cluster."""
