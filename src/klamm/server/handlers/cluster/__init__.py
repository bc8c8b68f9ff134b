"""Brokers, controllers, log directories and what they can do."""
