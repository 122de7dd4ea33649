# SPDX-License-Identifier: Apache-2.0
"""Draws nodes and clusters as SVG; standard library only."""

from topology.drawing.cluster import draw_cluster
from topology.drawing.node import draw_node

__all__ = ["draw_cluster", "draw_node"]
