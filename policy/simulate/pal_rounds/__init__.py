"""PAL's model of a cluster: every job may move at each round of six minutes."""
