"""Placement policies of published systems, for comparison."""
