"""Placement policies, which choose nodes and GPUs for jobs, and helpers for them."""
