"""The ledger: which job holds what, from when to when, and the changes that are planned to that."""
