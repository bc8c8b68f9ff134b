"""Judge a broker as its users would: unmodified clients in four languages and Apache Kafka's own tools."""
