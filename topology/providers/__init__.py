"""Where a machine's topology comes from."""
