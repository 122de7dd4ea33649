# SPDX-License-Identifier: Apache-2.0
"""Knowledge of the planner from beside slurmctld: topology, scores, profiles, limits; read anew when it changes."""
