"""Between the core's values and bytes: batches of the log and Kafka's quorum requests. Pure."""
