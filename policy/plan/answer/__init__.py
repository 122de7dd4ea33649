"""The reply to the hook: a place, a place later, or the reason why the job is left to Slurm or refused."""
