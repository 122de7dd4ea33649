"""Output formats of a machine's topology."""
