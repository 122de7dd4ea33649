"""Metrics for Prometheus: their table, their values, their paths and their readers."""
