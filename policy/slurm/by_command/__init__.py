# SPDX-License-Identifier: Apache-2.0
"""The gateway that runs Slurm's own commands and reads their output. It works with every release."""
