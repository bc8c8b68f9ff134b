"""Topics and partitions: creation, deletion, reassignment, Metadata."""
