# SPDX-License-Identifier: Apache-2.0
"""A deterministic world: berthd's code on a virtual clock, against a hostile model of Slurm (docs/develop/world.md)."""
