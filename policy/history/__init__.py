"""What jobs did before: how long they ran, how large they were, and the step times that their hosts told."""
