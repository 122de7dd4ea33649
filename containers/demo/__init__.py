# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the same jobs to Slurm alone and to Berth, on a real Slurm, scene by scene."""
