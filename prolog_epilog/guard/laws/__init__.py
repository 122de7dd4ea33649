"""Control laws: each takes a Reading and answers with the duty that the guest may have."""
