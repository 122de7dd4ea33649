"""The network between nodes: NVLink domains, leaves, pods, and Slurm's blocks."""
