"""The shell around shards: appends what they decide, sends replies once it is committed, loads shards from their logs."""
