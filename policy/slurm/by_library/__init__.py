# SPDX-License-Identifier: Apache-2.0
"""The gateways that speak to slurmctld through its library: pyslurm, and the program berth-slurm."""
