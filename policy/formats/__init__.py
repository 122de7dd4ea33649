"""What berthd, the plugins, the nodes and Slurm tell each other, as docs/formats.md has it."""
