# SPDX-License-Identifier: Apache-2.0
"""berthd on paper: its own code chooses places in the simulated Slurm."""
