"""Placement policies of published systems, to compare with."""
