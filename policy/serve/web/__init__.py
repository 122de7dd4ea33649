# SPDX-License-Identifier: Apache-2.0
"""`berth web`: a page of the machine room, the queue and past events, live or from a simulation."""
