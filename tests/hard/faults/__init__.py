"""A campaign of seeded faults on the real test cluster, with invariants after each."""
