"""Encoding and decoding of the core's values: as batches of the log, and as Kafka's quorum requests. Pure."""
