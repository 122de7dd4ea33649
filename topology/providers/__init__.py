"""Sources of a machine's topology."""
