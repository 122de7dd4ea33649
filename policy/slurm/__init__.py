# SPDX-License-Identifier: Apache-2.0
"""The one interface to Slurm, and its implementations."""
