"""A deterministic world: berthd's own code under a virtual clock, against a hostile model of Slurm (docs/world.md)."""
