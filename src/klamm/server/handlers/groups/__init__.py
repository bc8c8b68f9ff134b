"""Consumer groups: membership, rebalances, descriptions."""
