# SPDX-License-Identifier: Apache-2.0
"""The job's request: as Slurm sent it, and the demand, share, tier and locality that follow from it."""
