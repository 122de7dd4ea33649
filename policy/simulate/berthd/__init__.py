"""berthd on paper: its own code chooses places in the simulated Slurm."""
