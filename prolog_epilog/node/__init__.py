# SPDX-License-Identifier: Apache-2.0
"""The node: its GPUs, processes, control groups and files."""
