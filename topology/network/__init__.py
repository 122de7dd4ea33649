# SPDX-License-Identifier: Apache-2.0
"""The network between nodes: NVLink domains, leaves, pods, and Slurm's blocks."""
