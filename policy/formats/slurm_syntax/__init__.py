"""Texts in the syntax of Slurm itself: host lists, array tasks, excluded nodes, pins and moments."""
