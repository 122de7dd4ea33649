"""`berth web`: a page that shows the machine room, the queue and what happened, live or from a simulation."""
