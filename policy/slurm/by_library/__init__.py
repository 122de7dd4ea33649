# SPDX-License-Identifier: Apache-2.0
"""The gateways by Slurm's library: pyslurm, and the program berth-slurm."""
