"""Effective configs: the dynamic ones of the metadata over those of the configuration file."""
