"""The pure parts all coordinators share: the shard protocol with its decisions, deadlines, Java's string hash."""
