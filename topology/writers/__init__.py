"""What a machine's topology is turned into."""
