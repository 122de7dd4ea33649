"""Placement policies, and the tables that make them fast."""
