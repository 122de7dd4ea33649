"""What happens on a compute node: standard library only; shares file formats with the rest, never code."""
