"""What the node remembers of jobs that share its GPUs: who shares which, their share files, and who is kept apart."""
