"""Knowledge of the planner that does not come from Slurm: topology, scores, profiles; read anew when it changes."""
