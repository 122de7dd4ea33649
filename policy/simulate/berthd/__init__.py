# SPDX-License-Identifier: Apache-2.0
"""Runs berthd's own code in the simulated Slurm, where it chooses places."""
