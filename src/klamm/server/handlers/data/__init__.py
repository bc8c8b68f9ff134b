"""Records and offsets of partitions: Produce, Fetch, ListOffsets and their kin."""
