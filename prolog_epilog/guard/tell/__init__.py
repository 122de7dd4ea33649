"""The guard's messages to berthd."""
