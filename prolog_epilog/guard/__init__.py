"""berth-guard: what keeps a guest on a GPU from harming its host."""
