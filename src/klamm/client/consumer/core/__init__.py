"""Pure parts of the consumer: subscription state, fetch sessions, assignors, buffered batches; no sockets or clocks."""
