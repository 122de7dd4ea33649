# SPDX-License-Identifier: Apache-2.0
"""The site: berth.conf, the log, ports, credentials, and questions to berthd."""
