# SPDX-License-Identifier: Apache-2.0
"""The job of a Prolog or Epilog: its environment, its Extra, and what Slurm gave it on this node."""
