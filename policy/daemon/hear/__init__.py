# SPDX-License-Identifier: Apache-2.0
"""Messages of nodes and guards to berthd: reads them, and keeps what the plan, `berth why` and reports need."""
