"""Joint placement of several jobs."""
