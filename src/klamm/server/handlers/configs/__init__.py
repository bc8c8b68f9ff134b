"""Configs of topics, brokers, groups and loggers; ACLs and SASL, which are not enabled."""
