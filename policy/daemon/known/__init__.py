"""Knowledge of the planner that does not come from slurmctld: topology, scores, profiles, limits; read anew when it changes."""
