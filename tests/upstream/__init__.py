# SPDX-License-Identifier: Apache-2.0
"""A watch on Slurm's sources: what of the interface that Berth uses differs between two releases."""
