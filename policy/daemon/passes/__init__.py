# SPDX-License-Identifier: Apache-2.0
"""The planning process: it reads Slurm each second, plans, and keeps the topology, scores and profiles up to date."""
