"""Placement of several jobs at once."""
