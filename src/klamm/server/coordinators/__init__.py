"""The group and transaction coordinators of this node, and the partitions they keep their state in."""
