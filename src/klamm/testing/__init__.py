"""What proves the rest: a whole cluster under a seeded scheduler."""
