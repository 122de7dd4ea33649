"""GPUs that several jobs hold: who holds what part of which GPU, and until when."""
