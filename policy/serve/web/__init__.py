# SPDX-License-Identifier: Apache-2.0
"""`berth web`: a page that shows the machine room, the queue and what happened, live or from a simulation."""
