"""The shell around shards: appends their decisions, sends replies once they are committed, loads shards from logs."""
