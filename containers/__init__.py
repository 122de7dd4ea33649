"""The Dockerized Slurm test cluster."""
