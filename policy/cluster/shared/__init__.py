"""Shared GPUs: the parts that several jobs hold of a GPU, and until when."""
