"""Metrics for Prometheus: their table, their values, their paths and who may read them."""
