"""The site: berth.conf, its log, its ports, its credentials, and how a program asks berthd."""
