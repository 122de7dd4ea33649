"""The waiting jobs: the record of each, and the reader that makes it from Slurm's facts."""
