"""Configs of topics, brokers, groups, client metrics and loggers."""
