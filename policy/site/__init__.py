# SPDX-License-Identifier: Apache-2.0
"""The site: berth.conf, its log, its ports, its credentials, and how a program asks berthd."""
