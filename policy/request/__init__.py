"""What a job asks for: the request as Slurm sent it, the demand that follows from it, shares, tiers, locality."""
