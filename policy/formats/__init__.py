# SPDX-License-Identifier: Apache-2.0
"""The formats of messages between berthd, the plugins, the nodes and Slurm (docs/develop/formats.md)."""
