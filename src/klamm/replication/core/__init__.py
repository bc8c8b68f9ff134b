"""The pure parts of replication: ISR and high watermark of a partition, and the replies that wait for them."""
