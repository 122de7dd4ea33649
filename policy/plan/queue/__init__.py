"""The walk along the queue in Slurm's order, and why jobs wait."""
