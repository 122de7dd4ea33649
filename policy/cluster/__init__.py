"""What the cluster holds now: its nodes, what is free on them from when on, and which of them a job may use."""
