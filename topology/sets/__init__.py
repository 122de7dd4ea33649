"""The sets of GPUs of one node: which of them are best joined."""
