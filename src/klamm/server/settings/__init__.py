"""Settings in force: what the metadata overrides, over what the configuration file says."""
