"""The site: berth.conf, its log, its ports, its munge key, and how a program asks berthd."""
