# SPDX-License-Identifier: Apache-2.0
"""Texts as Slurm itself writes and reads them: array tasks, excluded nodes, pins and moments."""
