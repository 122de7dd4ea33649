"""The node: its GPUs, processes, control groups and files."""
