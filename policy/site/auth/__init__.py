# SPDX-License-Identifier: Apache-2.0
"""Credentials of messages and users, by Slurm's own way (sack) or by MUNGE."""
