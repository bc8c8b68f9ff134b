"""Brokers, controllers, their features and log directories."""
