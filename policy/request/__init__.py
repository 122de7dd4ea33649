"""The job's request: as Slurm sent it, and the demand, share, tier and locality that follow from it."""
