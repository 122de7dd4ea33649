"""What the guard decides for one guest on one GPU, and the laws that say how much it may run."""
