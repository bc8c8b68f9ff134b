"""The lag of groups: in records by the ends of partitions, in seconds by the times of their records."""
