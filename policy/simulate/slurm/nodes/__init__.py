# SPDX-License-Identifier: Apache-2.0
"""The nodes of the simulated cluster: their held resources, and Slurm's choice among them."""
