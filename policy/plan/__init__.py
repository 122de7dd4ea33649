"""The order of things: which waiting job gets which GPUs, now or later, and why the others wait."""
