"""The one interface to Slurm, and what implements it."""
