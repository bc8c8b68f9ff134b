"""Captures the changes of PostgreSQL tables into topics, each once: `CREATE TABLE ... WITH (connector = 'postgres')`.

A replication slot keeps what has not been captured. The rows of a table are read first, in the snapshot that the slot
exports, and then its changes by logical decoding (pgoutput). Both become records in Debezium's form. A transaction of
the producer holds the records and the position (LSN) up to which they are, so that a restart continues exactly there;
only then is the slot advanced. `core` has what needs no connection: the parser, the types, the records, the decisions.
"""
