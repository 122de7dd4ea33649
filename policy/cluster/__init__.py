# SPDX-License-Identifier: Apache-2.0
"""The cluster as it is now: its nodes, the times at which they come free, and the nodes that a job may use."""
