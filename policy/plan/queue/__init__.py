# SPDX-License-Identifier: Apache-2.0
"""The walk along the queue in Slurm's order, and why jobs wait."""
