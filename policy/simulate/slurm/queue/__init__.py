"""The simulated jobs: in which order they wait, why, and how they run."""
