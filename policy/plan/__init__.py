"""The plan: gives waiting jobs their GPUs, now or later, and says why the others wait."""
