"""The node's records on jobs that share its GPUs: who shares which, their share files, and who is kept apart."""
