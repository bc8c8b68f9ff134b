"""The broker as a member of its cluster: registration, metadata publishers, replication, log directories."""
