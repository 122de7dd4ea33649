"""Berthd's metrics: a process that serves them to Prometheus, apart from the processes that answer and plan."""
