# SPDX-License-Identifier: Apache-2.0
"""A workload for berthd's own processes: Slurm, its nodes and its users on paper, and what they measure."""
